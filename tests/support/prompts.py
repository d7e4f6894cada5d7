"""Prompts as token ids: any number of different ones, which share no block."""


def prompt(number: int, tokens: int) -> list[int]:
    """Differs from every other number's from the first token on."""
    return [100 + (number * 1009 + i * 7919 + (i * i * 31 + number) % 977) % 48000 for i in range(tokens)]
