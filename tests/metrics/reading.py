"""What /metrics says, read as Prometheus reads it."""

import re
from collections.abc import Collection

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


class Reading:
    """One scrape: the value of a series, and all names."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.types = {family.name: family.type for family in self.families.values()}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of the series of this name that have these labels."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self.samples if sample.name == name}


async def scrape(http: aiohttp.ClientSession) -> Reading:
    async with http.get("/metrics") as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/plain"
        return Reading(await answer.text())


def base_of(name: str, known: Collection[str]) -> str:
    """Return the metric that a series belongs to."""
    bare = name.removesuffix("_total")
    return bare if bare in known else re.sub(r"_(bucket|count|sum)$", "", name)
