"""Runs a command under an emulated Debian kernel with soft-RoCE (rdma_rxe), on this machine's own files: real RDMA verbs for tests.

    python tests/rdma/run_in_vm.py COMMAND [ARGUMENT...]

The guest sees this machine's / read-only under an overlay in memory, so that nothing the command writes outlives it, and has one
RDMA device (rxe0) on 10.99.0.1; MOONCASK_RDMA=1 there says that tests which want one may not skip. The command's output comes out here and its status is this program's; 125: the machine gave none.
Emulation in software is ten to twenty times slower than this processor: it proves what the verbs do, and no speed.

As root, on Debian 12: apt-get install qemu-system-x86 busybox-static cpio kmod iproute2 ibverbs-providers python3-pyverbs
The kernel that linux-image-amd64 stands for is fetched once into MOONCASK_VM_CACHE (~/.cache/mooncask-vm).
MOONCASK_VM_SECONDS (900) is how long all of it may take, MOONCASK_VM_MEMORY (3G) what the guest has.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

NO_STATUS = 125
AT_BOOT = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console", "virtio_rng")
PASSED_ON = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "PYTHONPATH", "VIRTUAL_ENV")
_9P = "trans=virtio,version=9p2000.L,msize=512000"

INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(cat /order); do insmod /modules/$module; done
mkdir /below /above /root
mount -t 9p -o ro,{_9P},cache=loose machine /below
mount -t tmpfs -o size=60% above /above
mkdir /above/changes /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/changes,workdir=/above/work overlay /root
mkdir -p /root/run/job
mount -t 9p -o rw,{_9P} job /root/run/job
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
exec chroot /root /bin/bash /run/job/guest
"""
"""`exec`: the kernel loads modules by itself from where its first process has its root, and rxe asks for one."""

GUEST = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev/shm /dev/pts /lib/modules
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
exec </dev/null >"$(ls /dev/vport*p1)" 2>&1
ulimit -l unlimited
ln -sfn {modules} /lib/modules/{version}
modprobe -a rdma_rxe ib_uverbs dummy
ip link set lo up
ip link add rdma0 type dummy
ip address add 10.99.0.1/24 dev rdma0
ip link set rdma0 up
rdma link add rxe0 type rxe netdev rdma0
echo "[guest: ready $(cut -d' ' -f1 /proc/uptime) s after its kernel began]"
( cd {folder} && exec env {environment} {command} )
echo $? >/run/job/status
echo "[guest: ended after $(cut -d' ' -f1 /proc/uptime) s]"
sync
busybox reboot -f
"""


class Kernel:
    """Debian's, unpacked in the cache. `initramfs` makes what mounts this machine's files."""

    def __init__(self, cache: Path) -> None:
        self.package = newest_package()
        self.version = self.package.removeprefix("linux-image-")
        self.folder = cache / self.package
        if not self.image.exists():
            self._make(cache)

    @property
    def image(self) -> Path:
        return self.folder / "boot" / f"vmlinuz-{self.version}"

    @property
    def modules(self) -> Path:
        return self.folder / "lib" / "modules" / self.version

    def _make(self, cache: Path) -> None:
        """In a folder beside it, which becomes the real one at the end: an interrupted one is never used."""
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            new = Path(name) / "kernel"
            new.mkdir()
            run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", self.package, cwd=name)
            [deb] = Path(name).glob("*.deb")
            run("dpkg", "-x", str(deb), str(new))
            run("depmod", "-b", str(new), self.version)
            shutil.rmtree(self.folder, ignore_errors=True)
            new.rename(self.folder)

    def initramfs(self, job: Path) -> Path:
        tree = job / "tree"
        for folder in ("bin", "dev", "proc", "sys", "modules"):
            (tree / folder).mkdir(parents=True)
        shutil.copy("/bin/busybox", tree / "bin")
        listed = run("modprobe", "-d", str(self.folder), "-S", self.version, "-D", "-a", *AT_BOOT)
        paths = [Path(line.split()[1]) for line in listed.splitlines() if line.startswith("insmod ")]
        for path in paths:
            shutil.copy(path, tree / "modules")
        (tree / "order").write_text("\n".join(dict.fromkeys(path.name for path in paths)))
        (tree / "init").write_text(INIT)
        (tree / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        packed = job / "initramfs"
        with packed.open("wb") as out:
            pack = ["cpio", "-o", "-H", "newc", "--quiet"]
            subprocess.run(pack, input=names.encode(), stdout=out, cwd=tree, check=True)
        return packed


def newest_package() -> str:
    names = kernels()
    if not names:  # a machine whose lists of packages were never fetched
        run("apt-get", "-qq", "update")
        names = kernels()
    if not names:
        raise SystemExit("apt knows no linux-image-amd64")
    return names[0]


def kernels() -> list[str]:
    asked = ["apt-cache", "depends", "linux-image-amd64"]
    depends = subprocess.run(asked, check=False, capture_output=True, text=True)
    return [line.split()[-1] for line in depends.stdout.splitlines() if "Depends: linux-image-" in line]


def run(*command: str, cwd: str | None = None) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def shared(name: str, path: Path, options: str) -> list[str]:
    return [
        "-fsdev",
        f"local,id={name},path={path},security_model=none,{options}multidevs=remap",
        "-device",
        f"virtio-9p-pci,fsdev={name},mount_tag={name}",
    ]


def machine(kernel: Kernel, job: Path) -> list[str]:
    return [
        *("nice", "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
        *("-m", os.environ.get("MOONCASK_VM_MEMORY", "3G")),
        *("-kernel", str(kernel.image), "-initrd", str(kernel.initramfs(job))),
        *("-append", "console=ttyS0 quiet panic=-1 mitigations=off cryptomgr.notests"),
        *("-serial", f"file:{job / 'console'}", "-device", "virtio-rng-pci"),
        *("-device", "virtio-serial-pci", "-chardev", "file,id=output,path=/dev/stdout,append=on"),
        *("-device", "virtserialport,chardev=output,nr=1"),
        *shared("machine", Path("/"), "readonly=on,"),
        *shared("job", job, ""),
    ]


def run_guest(command: Sequence[str], seconds: float) -> None:
    """Its output comes out here as it comes."""
    guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert guest.stdout is not None
    timer = threading.Timer(seconds, guest.kill)
    timer.start()
    try:
        while some := os.read(guest.stdout.fileno(), 1 << 16):
            sys.stdout.buffer.write(some)
            sys.stdout.buffer.flush()
    finally:
        timer.cancel()
        guest.kill()
        guest.wait()


def main(command: Sequence[str]) -> int:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kernel = Kernel(Path(os.environ.get("MOONCASK_VM_CACHE") or home / "mooncask-vm"))
    with tempfile.TemporaryDirectory() as name:
        job = Path(name)
        environment = [f"{key}={os.environ[key]}" for key in PASSED_ON if key in os.environ]
        environment.append("MOONCASK_RDMA=1")
        text = GUEST.format(
            modules=kernel.modules,
            version=kernel.version,
            folder=shlex.quote(os.getcwd()),  # noqa: PTH109 - as the shell spells it
            environment=shlex.join(environment),
            command=shlex.join(command),
        )
        (job / "guest").write_text(text)
        run_guest(machine(kernel, job), float(os.environ.get("MOONCASK_VM_SECONDS", "900")))
        status = job / "status"
        if status.exists():
            return int(status.read_text())
        console = job / "console"
        sys.stderr.write(console.read_text(errors="replace")[-3000:] if console.exists() else "it did not start\n")
        return NO_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
