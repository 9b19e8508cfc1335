"""The arithmetic of the benchmarks, against numbers worked out by hand."""

import json
import re
import statistics

import numpy as np
import pytest

import mnist_input
from benchmarks import compare, contenders, data, report, results, tables, tuning
from benchmarks.peers.clock import Clock
from benchmarks.peers.input_cost import constant_batch_ratio


class Time:
    """A time that stands still between the steps of a test."""

    def __init__(self):
        self.secs = 50.0

    def __call__(self):
        return self.secs


def accuracy(parameters):
    """The parameters of these tests are their own accuracy."""
    return parameters


def run_clock(setup_secs, first_step, snapshots, end, parameters_at_end=0.9):
    """Run a clock of 100 examples per step; `snapshots` are (secs, step, accuracy), `end` is (secs, step)."""
    now = Time()
    clock = Clock(examples_per_step=100, snapshot_secs=0.5, now=now)
    now.secs += setup_secs
    clock.start(first_step)
    start = now.secs
    for secs, step, value in snapshots:
        now.secs = start + secs
        assert clock.is_due()
        clock.keep(step, value)
        assert not clock.is_due()
    now.secs = start + end[0]
    clock.stop(end[1])
    return clock.result(parameters_at_end, accuracy)


def test_the_rate_is_that_after_a_quarter_of_the_time():
    snapshots = [(1.0, 10, 0.1), (2.0, 110, 0.1), (3.0, 130, 0.1)]  # a quarter of 8 s is 2 s
    result = run_clock(0.0, 10, snapshots, end=(8.0, 710))
    assert result.examples_per_sec == (710 - 110) * 100 / (8.0 - 2.0)
    assert (result.train_secs, result.global_step, result.test_accuracy) == (8.0, 710, 0.9)


def test_the_first_examples_take_their_time_at_the_rate_of_the_run():
    # The run takes 50 steps a second. The first call took 25 steps, so 0.5 s of its 3 s were training.
    snapshots = [(1.0, 75, 0.96), (2.0, 125, 0.975), (3.0, 175, 0.98)]
    result = run_clock(3.0, 25, snapshots, end=(4.0, 225))
    assert result.examples_per_sec == 5000
    assert result.setup_secs == 3.0 - 0.5
    assert (result.secs_to_target, result.steps_to_target) == (2.0 + 0.5, 125)


def test_the_target_may_be_reached_only_in_the_end():
    result = run_clock(1.0, 50, [(1.0, 100, 0.974)], end=(2.0, 150), parameters_at_end=0.976)
    assert (result.secs_to_target, result.steps_to_target) == (2.0 + 1.0, 150)


def test_a_target_that_is_never_reached_has_no_time():
    result = run_clock(1.0, 50, [(1.0, 100, 0.974)], end=(2.0, 150), parameters_at_end=0.974)
    assert (result.secs_to_target, result.steps_to_target) == (None, None)


@pytest.mark.parametrize("snapshots", [[], [(1.0, 100, 0.9)], [(9.0, 700, 0.9)]])
def test_a_run_without_a_snapshot_between_its_warm_up_and_its_end_is_too_short(snapshots):
    with pytest.raises(SystemExit, match="too short"):
        run_clock(1.0, 10, snapshots, end=(9.0, 700))


def test_the_constant_batch_ratio_compares_odd_seconds_with_even_ones():
    # 10 steps in each tenth of an even second, 12 in one of an odd second.
    progress, step = [], 0
    for tenth in range(81):
        progress.append((100 + tenth / 10 + 0.05, step))
        step += 12 if (100 + tenth // 10) % 2 else 10
    assert constant_batch_ratio(progress) == pytest.approx(1.2)


def test_the_constant_batch_ratio_ignores_the_start_of_a_second_the_warm_up_and_the_last_step():
    pairs = [(0.25, 0), (0.75, 999), (2.25, 1000), (2.75, 1010), (3.05, 1500), (3.25, 1600), (3.75, 1615), (3.95, 1616)]
    # The first two of eight are the warm-up. From 2.25 to 2.75 there are 10 steps; from 2.75 to 3.25 the second changes
    # or has just begun; from 3.25 to 3.75 there are 15; the last pair may be later than the end of training.
    assert constant_batch_ratio(pairs) == pytest.approx((15 / 0.5) / (10 / 0.5))


def test_the_soonest_has_the_lowest_median_of_those_that_reach_the_target_most_often():
    assert tuning.soonest({"a": [1.0, 1.0, None], "b": [3.0, 2.0, 4.0]}) == "b"
    assert tuning.soonest({"a": [1.0, 9.0, 9.0], "b": [3.0, 2.0, 4.0], "c": [0.5, None, None]}) == "b"
    assert tuning.soonest({"a": [None], "b": [60.0]}) == "b"


def fake_run(secs_to_target):
    """Return a stand-in for `contenders.run()`, and the runs that it was asked for."""
    runs = []

    def run(contender, setting, seed):
        runs.append((contender.name, setting, seed))
        return {"secs_to_target": secs_to_target(contender.name, setting, seed)}

    return run, runs


def test_the_best_setting_is_the_best_finalist_over_all_tuning_seeds(monkeypatch):
    # With the first seed, three settings are better than all others; with the other two, the last of them wins.
    first = {"sgd 0.5": 1.0, "adam 0.002": 2.0, "momentum 0.1": 3.0}
    others = {"sgd 0.5": 9.0, "adam 0.002": 5.0, "momentum 0.1": 4.0}
    run, runs = fake_run(lambda _, setting, seed: (first if seed == 100 else others).get(setting))
    monkeypatch.setattr(contenders, "run", run)
    assert tuning.best_setting(contenders.CONTENDERS[0]) == "momentum 0.1"
    assert len(runs) == 9 + 3 * 2


def test_one_cycle_is_tuned_with_greater_rates(monkeypatch):
    run, runs = fake_run(lambda _, setting, seed: {"nesterov 0.3": 1.0}.get(setting))
    monkeypatch.setattr(contenders, "run", run)
    assert tuning.best_setting(contenders.OURS_ONE_CYCLE) == "nesterov 0.3"
    assert len(runs) == 6 + 3 * 2


def test_tuning_chooses_the_recommended_setting_with_its_own_seeds(monkeypatch, tmp_path):
    secs = {"32 local steps": 2.0, "64 local steps": 1.0, "128 local steps": 0.5, "one cycle": 0.6}
    run, runs = fake_run(lambda name, *_: secs.get(name.split(", ")[-1]))
    monkeypatch.setattr(contenders, "run", run)
    monkeypatch.setattr(tuning, "SETTINGS", tmp_path / "settings.json")
    settings = {contenders.OURS_SYNC_16: "momentum 0.1", contenders.OURS_ONE_CYCLE.name: "momentum 0.1"}
    tuning.SETTINGS.write_text(json.dumps(settings))
    tuning.tune([contenders.RECOMMENDED])
    assert tuning.read_settings() == {**settings, contenders.RECOMMENDED: "ours, synchronous, 128 local steps"}
    assert len(runs) == 5 * 3
    assert {(setting, seed) for _, setting, seed in runs} == {("momentum 0.1", seed) for seed in (100, 101, 102)}


def test_a_comparison_has_the_recommended_number_of_pytorchs_local_steps_and_no_other():
    settings = {contenders.RECOMMENDED: "ours, synchronous, 64 local steps"}
    with pytest.raises(SystemExit, match="recommended of PyTorch"):
        tuning.compared(settings, is_quick=False)
    settings[contenders.RECOMMENDED_TORCH] = "PyTorch, 64 local steps"
    compared = tuning.compared(settings, is_quick=False)
    names = [contender.name for contender in compared if contender.module == "torch_local_steps"]
    assert names == ["PyTorch, 64 local steps", contenders.TORCH_16]
    assert len(compared) == len(contenders.CONTENDERS) - 3


def test_a_quick_comparison_has_eight_contenders_and_the_recommended_one_is_among_them():
    settings = {contenders.RECOMMENDED: "ours, synchronous, 64 local steps", contenders.RECOMMENDED_TORCH: "none"}
    names = [contender.name for contender in tuning.compared(settings, is_quick=True)]
    assert len(names) == 8
    assert {*names} == {*contenders.QUICK, "ours, synchronous, 64 local steps"}


def test_a_contender_that_is_not_tuned_ends_the_comparison():
    with pytest.raises(SystemExit, match="--tune --only 'the classic script'"):
        tuning.setting_of(contenders.Contender("the classic script", "classic", 1), {})


COMPARISON = results.Results(
    "a machine",
    "fast",
    {
        "slow": results.Figures("sgd 0.5", [10000.0, 30000.0, 20000.0], [4.0, None, 3.5], [1.04, 1.26, 0.9], None),
        "fast": results.Figures("adam 0.001", [50000.0, 10.0, 70000.0], [None, None, None], [0.5, 0.4, 0.6], None),
        "constant": results.Figures("adam 0.001", [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.2, 1.1]),
    },
)


def test_the_table_of_the_results_has_medians_ratios_and_spreads():
    assert tables.results_table(COMPARISON).splitlines()[2:] == [
        "| slow | sgd 0.5 | 20 | 1.00 | 4.00 | 3.50 to never | 1.0 |",
        "| fast (recommended) | adam 0.001 | 50 | 2.50 | never | never | 0.5 |",
    ]


def test_the_table_of_the_input_has_only_constant_batches():
    assert tables.input_table(COMPARISON.figures).splitlines()[2:] == ["| constant | 1.15 | 1.10 to 1.20 |"]


def test_the_table_of_the_accuracies_has_means():
    accuracy = results.Accuracy("a machine", 10000, "adam 0.001", {"ours": [0.97, 0.98]})
    assert tables.accuracy_table(accuracy).splitlines()[2:] == ["| ours | 0.9750 | 0.9700 to 0.9800 |"]


def test_figures_hold_what_the_tables_need():
    run = {"examples_per_sec": 5.0, "secs_to_target": None, "setup_secs": 1.0, "train_secs": 9.0}
    assert results.make_figures("sgd 0.5", [run]) == results.Figures("sgd 0.5", [5.0], [None], [1.0], None)
    constant = {**run, "constant_batch_ratio": 1.5}
    assert results.make_figures("sgd 0.5", [constant]).constant_batch_ratio == [1.5]


def test_a_document_is_written_from_the_files_of_the_last_full_runs(monkeypatch, tmp_path):
    accuracy = results.Accuracy("a machine", 10000, "adam 0.001", {"ours": [0.97]})
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "ACCURACY", tmp_path / "accuracy.json")
    monkeypatch.setattr(results, "QUICK", tmp_path / "quick.json")
    results.write_results(COMPARISON, results.RESULTS)
    results.write_results(COMPARISON._replace(header="another machine"), results.QUICK)
    results.write_accuracy(accuracy)
    assert (results.read_results(results.RESULTS), results.read_accuracy()) == (COMPARISON, accuracy)

    monkeypatch.setattr(report, "BENCHMARKS", tmp_path / "benchmarks.md")
    monkeypatch.setattr(compare, "CHART", tmp_path / "benchmarks.png")
    monkeypatch.setattr(compare, "QUICK_CHART", tmp_path / "quick.png")
    monkeypatch.setattr(compare.chart, "draw_chart", lambda figures, path: path.write_text(",".join(figures)))
    monkeypatch.setattr(report, "OVERHEAD", tmp_path / "overhead.md")
    report.OVERHEAD.write_text("<!-- begin input -->\n<!-- end input -->")
    names = ("results", "chart", "quick", "accuracy")
    report.BENCHMARKS.write_text("\n".join(f"<!-- begin {name} -->\n<!-- end {name} -->" for name in names))
    compare.write_document()
    assert "| constant |" in report.OVERHEAD.read_text()
    assert compare.CHART.read_text() == "slow,fast"
    document = report.BENCHMARKS.read_text()
    assert document.count(tables.results_table(COMPARISON)) == 2
    assert document.count("another machine") == 1
    for text in ("(benchmarks.png)", "(quick.png)", "0.9700 to 0.9700"):
        assert document.count(text) == 1


def test_a_comparison_of_only_some_prints_its_tables_and_writes_nothing(monkeypatch, tmp_path, capsys):
    result = {"examples_per_sec": 20000.0, "secs_to_target": 3.0, "setup_secs": 1.0, "test_accuracy": 0.5}
    monkeypatch.setattr(contenders, "run", lambda *_: result)
    monkeypatch.setattr(tuning, "read_settings", lambda: {contenders.OURS: "sgd 0.5"})
    for module, name in ((results, "RESULTS"), (results, "ACCURACY"), (report, "BENCHMARKS"), (compare, "CHART")):
        monkeypatch.setattr(module, name, tmp_path / name)
    for mode in ([], ["--accuracy"]):
        monkeypatch.setattr("sys.argv", ["compare.py", "--no_isolation", "--only", contenders.OURS, *mode])
        compare.main()
    assert list(tmp_path.iterdir()) == []
    printed = capsys.readouterr().out
    assert f"| {contenders.OURS} | sgd 0.5 | 20 | 1.00 | 3.00 | 3.00 | 1.0 |" in printed
    assert f"| {contenders.OURS} | 0.5000 | 0.5000 to 0.5000 |" in printed


def test_a_section_is_replaced_and_the_rest_of_the_document_stays(tmp_path):
    document = tmp_path / "document.md"
    document.write_text(
        "Before.\n<!-- begin speed -->\nold\n<!-- end speed -->\nAfter.\n<!-- begin x --><!-- end x -->"
    )
    report.write_section(document, "speed", "new\n")
    expected = "Before.\n<!-- begin speed -->\n\nnew\n\n<!-- end speed -->\nAfter.\n<!-- begin x --><!-- end x -->"
    assert document.read_text() == expected
    report.write_section(document, "speed", "new\n")
    assert document.read_text() == expected


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "<!-- begin speed -->",
        "<!-- end speed --><!-- begin speed -->",
        "<!-- begin speed --><!-- end speed --><!-- begin speed --><!-- end speed -->",
    ],
)
def test_a_document_without_its_markers_is_refused_and_stays(tmp_path, text):
    document = tmp_path / "document.md"
    document.write_text(text)
    with pytest.raises(ValueError, match="expected the markers <!-- begin speed --> and <!-- end speed -->"):
        report.write_section(document, "speed", "new")
    assert document.read_text() == text


def test_a_table_is_markdown():
    assert report.make_table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_header_of_a_run_names_machine_versions_and_commit_in_one_line():
    header = report.run_header()
    assert "\n" not in header
    for pattern in (r"\d+ cores, \d+ GiB", r"Python 3\.\d+\.\d+, TensorFlow 2\.", r"; commit \w+", r"20\d\d\.$"):
        assert re.search(pattern, header), pattern


def test_the_readme_recommends_what_tuning_chose():
    settings = tuning.read_settings()
    (chosen,) = [c for c in contenders.CONTENDERS if c.name == settings[contenders.RECOMMENDED]]
    optimizer, learning_rate = tuning.setting_of(chosen, settings).split()
    flags = f"{' '.join(chosen.flags)} --optimizer={optimizer} --learning_rate={learning_rate}"
    if chosen == contenders.OURS_ONE_CYCLE:
        flags += f" --train_steps={chosen.train_steps}"
    assert f"./run_local_cluster.sh {flags}\n" in (report.PROJECT / "README.md").read_text()


def test_mnist_is_shifted_until_there_are_as_many_examples_as_wanted(mnist_dir):
    images, labels = data.load_shifted(60_003)(mnist_dir, "train")
    assert (len(images), len(labels)) == (60_003, 60_003)
    examples = mnist_input.load(mnist_dir, "train")
    np.testing.assert_array_equal(images[:60_000], examples.images)
    np.testing.assert_array_equal(labels[60_000:], examples.labels[:3])
    shifted = np.roll(examples.images[:3].reshape(3, 28, 28), data.SHIFTS[1], axis=(1, 2))
    np.testing.assert_array_equal(images[60_000:].reshape(3, 28, 28), shifted)
    assert len(set(data.SHIFTS)) == 50


FRACTIONS = {"half": 1 / 2, "two fifths": 2 / 5, "a third": 1 / 3, "three tenths": 3 / 10, "a thirteenth": 1 / 13}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("PyTorch, `DistributedDataParallel`", contenders.DDP),
        ("PyTorch, averaging the workers every 32 steps", "PyTorch, 32 local steps"),
        ("one TensorFlow process, no cluster", "one process, TensorFlow"),
        ("this script, with `--optimizer=momentum --learning_rate=0.05`", contenders.OURS),
        ("this script, with the command below", contenders.OURS_ONE_CYCLE.name),
    ],
)
def test_the_ratios_of_readme_are_those_of_the_last_full_comparison(row, name):
    readme = (report.PROJECT / "README.md").read_text()
    ((times, fraction),) = re.findall(rf"^\| {re.escape(row)} \| (\d+) times \| (.*) \|$", readme, re.MULTILINE)
    figures = results.read_results(results.RESULTS).figures
    ours, classic = figures[name], figures[contenders.CLASSIC]
    ratio = statistics.median(ours.examples_per_sec) / statistics.median(classic.examples_per_sec)
    assert round(ratio) == int(times)
    ratio = statistics.median(ours.secs_to_target) / statistics.median(classic.secs_to_target)
    assert ratio == pytest.approx(FRACTIONS[fraction], rel=0.15)
