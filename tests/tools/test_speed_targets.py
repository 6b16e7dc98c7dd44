"""The table of all targets, by hand."""

from pathlib import Path

from tools.reference.speed_targets import ORDER, read_targets, readable


def test_a_row_by_hand(tmp_path: Path) -> None:
    folder = tmp_path
    header = "what,wanted,verdict,estimate,low,high,median,note,measured\n"
    for name in ORDER:
        row = "GRPO / PPO,at least 2,met,2.1234,2.05,2.2,2.11,,somewhere\n"
        (folder / f"{name}_targets.csv").write_text(header + row)
    (folder / "scaling_targets.csv").write_text(
        header + "steps,at most 1.1,missed,,,,,reached by 1 of 2,elsewhere\n"
    )
    table = readable(read_targets(folder))
    assert len(table) == len(ORDER)
    first, last = table.iloc[0], table.iloc[-1]
    assert (first["median"], first["mean"], first["verdict"]) == (
        "2.11",
        "2.12\n[2.05, 2.20]",
        "met",
    )
    assert (last["median"], last["mean"], last["verdict"]) == ("–", "–\n[–, –]", "missed")
    assert table.attrs["footnotes"] == ["steps: reached by 1 of 2"]
    assert table.attrs["header"] == "somewhere\nelsewhere"
