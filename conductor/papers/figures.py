"""All figures by name."""

from mooncask.conductor.papers import conversation, costs, overload, poisson, serving, tides
from mooncask.conductor.papers.report import Make
from mooncask.errors import BadArgument

FIGURES: dict[str, Make] = {
    "fast25-table2": conversation.table_2,
    "fast25-eq2": costs.equation_2,
    "fast25-1": serving.effective_capacity,
    "fast25-5": conversation.figure_5,
    "fast25-8": conversation.figure_8,
    "fast25-9": conversation.figure_9,
    "fast25-10": conversation.figure_10,
    "fast25-11": conversation.figure_11,
    "fast25-12": costs.figure_12,
    "fast25-13": serving.figure_13,
    "fast25-14": costs.figure_14,
    "fast25-15": serving.figure_15,
    "arx-table1": conversation.arx_table_1,
    "arx-table3": overload.table_3,
    "arx-7": costs.layer_wise,
    "arx-9": overload.oscillation,
    "arx-11": poisson.figures_11_and_12,
    "arx-13": serving.real_workload,
    "articles": serving.claims,
    "tide": tides.tide,
}
ALSO = {
    "arx-8": "fast25-5",
    "fast25-6": "fast25-1",
    "fast25-7": "fast25-1",
    "arx-10": "arx-9",
    "arx-12": "arx-11",
    "arx-table2": "arx-11",
}


def find_figure(name: str) -> tuple[str, Make]:
    """A figure by its name; a bare number means FAST'25. Raises BadArgument with the names there are."""
    full = f"fast25-{name}" if f"fast25-{name}" in FIGURES | ALSO else name
    full = ALSO.get(full, full)
    if full not in FIGURES:
        raise BadArgument("--figure", name, f"one of {', '.join(FIGURES)}, or a number of FAST'25")
    return full, FIGURES[full]
