"""The result of stats(): a row for each tensor."""
from typing import Any, Dict, List

from .results import StatisticsList, Total


class StatisticsTable(List[Dict[str, Any]]):
    """A row for each tensor, a dictionary of its facts and statistics: ``pandas.DataFrame(rows)`` is a table.

    result: the whole output of `ckpt-inspect stats --json`, a `results.StatisticsList`. The rows have its keys too:
        ``rows["totals"]``.
    """

    result: StatisticsList

    def __init__(self, result: StatisticsList) -> None:
        super().__init__(_row(tensor) for tensor in result["tensors"])
        self.result = result

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.result[key]  # type: ignore[literal-required]
        return super().__getitem__(key)

    @property
    def totals(self) -> List[Total]:
        """Totals of all parameters, and of each of the optimizer's states."""
        return self.result["totals"]

    @property
    def finite(self) -> bool:
        """Returns whether all elements are finite."""
        return self.result["finite"]

    @property
    def notes(self) -> List[str]:
        """Notes on the result."""
        return self.result["notes"]

    def __reduce__(self) -> Any:
        return StatisticsTable, (self.result, )


def _row(tensor: Any) -> Dict[str, Any]:
    """The name comes first, and all rows have the same keys."""
    facts = {key: value for key, value in tensor.items() if key != "stats"}
    return {"name": "", "state": "", "alias_of": "", **facts, **tensor["stats"]}
