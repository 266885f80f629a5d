"""Pages in a real browser, opened from disk with WebGL off: what is shown, sorted, filtered, unfolded and hovered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import spiritlevel as sl
from spiritlevel import page
from spiritlevel.analyses.comparison import compare
from spiritlevel.analyses.spectra import spectrum
from spiritlevel.results import Report
from spiritlevel.results.numerals import value_text
from tests.analyses.made_reports import made_runs
from tests.page.material import HOSTILE, hostile_problem, is_close, made_report, sampled_report

pytestmark = pytest.mark.slow

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-webgl",
    "--disable-3d-apis",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WIDTHS = {390: 844, 1280: 800, 1920: 1080}
KINDS = ("report", "comparison", "audit", "spectrum", "epochs", "study", "runs", "networks")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("these tests need a Chromium browser, and none was found; run apt-get install chromium")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind; the networks have layers named like markup."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("pages")
    problem = hostile_problem()
    report = sl.measure(problem, ["default", "aceht", "margin_bound", "softmax_margin"])
    report = report.described(model=HOSTILE[1], weights=f"runs/{HOSTILE[0]}.pt", data="digits")
    report.save(folder / "report.json")
    contents: dict[str, page.PageContent] = {"report": page.of_reports(report)}
    both = {"a <b>first</b>.pt": problem, "b.pt": hostile_problem(1)}
    compared = compare(both, ["default", "aceht"], search=False)
    compared.save(folder / "comparison.json")
    contents["comparison"] = page.of_comparison(compared)
    contents["audit"] = page.of_audit(sl.audit(problem, "default", strengths=["usual"], alphas=(0.1, 10.0)))
    contents["spectrum"] = page.of_spectrum(spectrum(problem, probes=3, steps=20), 0.5)
    stages = [made_report(1 / e, weights=f"epoch-{e}.pt", loss=1 / e) for e in range(1, 7)]
    contents["epochs"] = page.of_reports(stages, learning_rate=0.7)
    contents["study"] = page.of_studies(_records(folder))
    contents["runs"] = page.of_reports(made_runs(samples=200))
    contents["networks"] = page.of_comparison(compare({f"a long name/{k}": r for k, r in made_runs(20, 1).items()}))
    files = {kind: folder / f"{kind}.html" for kind in KINDS}
    for kind, file in files.items():
        page.write(contents[kind], file)
    return files


def _records(folder: Path) -> list[Any]:
    from spiritlevel.lab.studies import RunStore, make_record, run_study, study_named

    store, study = RunStore(folder / "runs"), study_named("margins-fig1")
    run_study(study, "smoke", store)
    return [make_record(study, "smoke", store.table(study, "smoke"))]


class Opened:
    """A page in the browser, with everything that went wrong in it."""

    def __init__(self, browser: Any, file: Path, width: int = 1280, scheme: str = "light", **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": WIDTHS[width]}, color_scheme=scheme, **options
        )
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._seen(request.url))
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("body[data-ready]", timeout=20_000)

    def _seen(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(f"request to {url}")

    def open_all(self) -> None:
        """Unfold everything by its summaries, as a reader would."""
        for fold in self.page.query_selector_all("details.fold:not([open]) > summary"):
            fold.click()
        self.page.wait_for_function(
            "Array.from(document.querySelectorAll('.plot')).every(plot => plot.querySelector('svg'))", timeout=20_000
        )

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_page_fits_and_is_silent(browser: Any, pages: dict[str, Path], kind: str, width: int) -> None:
    with Opened(browser, pages[kind], width) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        opened.open_all()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.wrong == []
        cut = opened.page.evaluate(
            """() => Array.from(document.querySelectorAll('.plot svg')).flatMap(svg => {
                const box = svg.getBoundingClientRect(), plot = svg.parentNode.getBoundingClientRect();
                const out = box.width > plot.width + 1 || box.height > plot.height + 1 ? [svg.parentNode.id] : [];
                return out.concat(Array.from(svg.querySelectorAll('text')).filter(text => {
                    const own = text.getBoundingClientRect();
                    return own.width && (own.left < box.left - 2 || own.right > box.right + 2
                        || own.top < box.top - 2 || own.bottom > box.bottom + 2);
                }).map(text => text.closest('.plot').dataset.figure + ': ' + text.textContent));
            })"""
        )
        assert cut == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_an_axis_do_not_overlap(browser: Any, pages: dict[str, Path], kind: str, width: int) -> None:
    with Opened(browser, pages[kind], width) as opened:
        opened.open_all()
        overlapping = opened.page.evaluate(
            """() => Array.from(document.querySelectorAll('.role-axis-label, .role-legend-label')).flatMap(group => {
                const texts = Array.from(group.querySelectorAll('text')).filter(
                    text => text.textContent && text.getAttribute('opacity') !== '0');
                const boxes = texts.map(text => text.getBoundingClientRect());
                return boxes.flatMap((a, i) => boxes.slice(i + 1).some(b => a.left < b.right - 1 && b.left < a.right - 1
                    && a.top < b.bottom - 3 && b.top < a.bottom - 3) ? [texts[i].textContent] : []);
            })"""
        )
        assert overlapping == []


def test_nothing_moves_while_the_page_is_made(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["comparison"]) as opened:
        shifted = opened.page.evaluate(
            """() => new Promise(done => {
                let total = 0;
                new PerformanceObserver(list => { for (const e of list.getEntries()) total += e.value; })
                    .observe({type: 'layout-shift', buffered: true});
                setTimeout(() => done(total), 300);
            })"""
        )
        assert shifted < 0.01


@pytest.mark.parametrize("kind", ["report", "comparison", "audit"])
def test_names_like_markup_show_as_text(browser: Any, pages: dict[str, Path], kind: str) -> None:
    with Opened(browser, pages[kind]) as opened:
        opened.open_all()
        text = opened.page.inner_text("main")
        for name in HOSTILE:
            assert name in text
        assert opened.page.evaluate("document.querySelectorAll('main b, main img, main script').length") == 0
        assert opened.wrong == []


def test_hostile_layers_are_text_in_figures_too(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["report"]) as opened:
        labels = opened.page.evaluate(
            "Array.from(document.querySelectorAll('[data-figure=layer_shares] text'), text => text.textContent)"
        )
        assert set(HOSTILE[:1]) <= set(labels)
        bar = opened.page.query_selector("[data-figure=layer_shares] .mark-rect path")
        bar.hover()
        tip = opened.page.inner_text("#tip")
        assert any(name in tip for name in HOSTILE)
        assert opened.wrong == []


def test_numbers_are_those_of_the_json(browser: Any, pages: dict[str, Path]) -> None:
    report = Report.load(pages["report"].with_suffix(".json"))
    record = json.loads(pages["report"].with_suffix(".json").read_text())
    with Opened(browser, pages["report"]) as opened:
        for table in ("table-first-table", "table-all-measures"):
            rows = opened.page.evaluate(
                """id => Array.from(document.getElementById(id).tBodies, group => [
                    group.rows[0].cells[0].querySelector('small').textContent,
                    group.rows[0].cells[1].firstChild.textContent.trim(), group.rows[0].cells[1].dataset.value])""",
                table,
            )
            assert len(rows) == (6 if table == "table-first-table" else len(report))
            for name, shown, value in rows:
                assert float(value) == record["measures"][name]["value"]
                assert shown.lstrip("≤≥ ") == value_text(report[name])
        layers = opened.page.evaluate(
            """() => Array.from(document.querySelectorAll('#table-layers-1 tbody tr'), row => [
                row.cells[0].textContent, ...Array.from(row.cells).slice(1).map(cell => cell.dataset.value)])"""
        )
        for layer, *values in layers:
            for quantity, value in zip(record["layers"], values):
                if layer in record["layers"][quantity]:
                    assert float(value) == record["layers"][quantity][layer]["value"]


def test_a_comparison_shows_the_ratios_of_its_json(browser: Any, pages: dict[str, Path]) -> None:
    record = json.loads(pages["comparison"].with_suffix(".json").read_text())
    with Opened(browser, pages["comparison"]) as opened:
        rows = opened.page.evaluate(
            """() => Array.from(document.getElementById('table-all-measures').tBodies, group => [
                group.rows[0].cells[0].querySelector('small').textContent,
                ...Array.from(group.rows[0].cells).slice(1, 4).map(cell => cell.dataset.value)])"""
        )
        assert [row[0] for row in rows] == list(record["rows"])
        for name, a, b, ratio in rows:
            first, second = (record["reports"][label]["measures"][name]["value"] for label in record["labels"])
            assert (float(a), float(b)) == (first, second)
            found = record["rows"][name]["contrasts"][0]["ratio"]
            if found is not None:
                assert float(ratio) == found["value"]
        assert opened.page.inner_text(".answer") == " ".join(record["reading"])


def test_sorting_by_mouse_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    values = """() => Array.from(document.getElementById('table-all-measures').tBodies,
        group => Number(group.rows[0].cells[1].dataset.value))"""
    with Opened(browser, pages["report"]) as opened:
        opened.page.click("#measures > summary")
        before = opened.page.evaluate(values)
        opened.page.click("#table-all-measures thead th:nth-child(2) button")
        assert opened.page.evaluate(values) == sorted(before)
        opened.page.focus("#table-all-measures thead th:nth-child(2) button")
        opened.page.keyboard.press("Enter")
        assert opened.page.evaluate(values) == sorted(before, reverse=True)
        head = "#table-all-measures thead th:nth-child(2)"
        assert opened.page.get_attribute(head, "aria-sort") == "descending"


def test_filtering_and_unfolding(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["report"]) as opened:
        opened.page.focus("#measures > summary")
        opened.page.keyboard.press("Enter")  # folds open from the keyboard
        opened.page.fill("[data-filter=table-all-measures]", "margin")
        shown = opened.page.evaluate(
            """() => Array.from(document.getElementById('table-all-measures').tBodies).filter(g => !g.hidden)
                .map(g => g.querySelector('small').textContent)"""
        )
        assert shown == ["output_margin", "margin_bound", "softmax_margin"]
        assert "3 of 9 rows" in opened.page.inner_text("[data-count=table-all-measures]")
        opened.page.fill("[data-filter=table-all-measures]", "")
        row = opened.page.locator("#table-all-measures tbody").first
        more, layer = row.locator("tr.more"), row.locator("tr.layer").first
        assert not more.is_visible()
        row.locator("button.unfold").click()
        assert more.is_visible()
        assert layer.is_visible()
        assert HOSTILE[0] in layer.inner_text()
        assert more.locator("math").bounding_box()["height"] > 8
        assert "Lengyel et al. 2021" in more.inner_text()


def test_hovering_shows_the_right_sample(browser: Any, pages: dict[str, Path]) -> None:
    record = json.loads(pages["report"].with_suffix(".json").read_text())
    with Opened(browser, pages["report"]) as opened:
        opened.page.click("#samples > summary")
        opened.page.wait_for_selector("[data-figure=trace_against_aceht] .mark-symbol path")
        opened.page.locator("#figure-trace_against_aceht").scroll_into_view_if_needed()
        # Points that nothing else covers; the drawing keeps its datum with each.
        found = opened.page.evaluate(
            """() => Array.from(document.querySelectorAll(
                '[data-figure=trace_against_aceht] g.mark-symbol:not(.role-legend-symbol) path')).flatMap(path => {
                    const box = path.getBoundingClientRect();
                    const x = box.left + box.width / 2, y = box.top + box.height / 2;
                    const datum = path.__data__ && path.__data__.datum;
                    return datum && datum.sample !== undefined && document.elementFromPoint(x, y) === path
                        ? [[x, y, datum.sample]] : [];
                }).slice(-12)"""
        )
        assert len(found) >= 3
        for x, y, sample in found:
            opened.page.mouse.move(x, y)
            opened.page.wait_for_function(
                "sample => document.querySelector('#tip dd')?.textContent === String(sample)", arg=sample, timeout=3000
            )
            texts = opened.page.evaluate("Array.from(document.querySelectorAll('#tip dd'), dd => dd.textContent)")
            trace = record["samples"]["hessian_trace"][sample]
            assert abs(float(texts[1].replace("−", "-")) - trace) <= 1e-3 * abs(trace)
            placed = opened.page.evaluate(
                "sample => { const d = JSON.parse(document.getElementById('data').textContent).datasets.samples;"
                " return d.hessian_trace[d.sample.indexOf(sample)]; }",
                sample,
            )
            assert is_close(placed, trace)


def test_dark_pages_are_readable(browser: Any, pages: dict[str, Path]) -> None:
    """Text stands against its background by at least 4.5 to 1, in tables, captions and figures, light and dark."""
    contrasts = """() => {
        const light = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => {
                const c = v / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        const selectors = {'h1': 'color', '.settings': 'color', '.answer': 'color', 'td': 'color', 'small': 'color',
            '.caption': 'color', '.plot text': 'fill'};
        return Object.entries(selectors).map(([selector, property]) => {
            const own = light(getComputedStyle(document.querySelector(selector))[property]);
            return [selector, (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05)]; }); }"""
    for scheme in ("light", "dark"):
        with Opened(browser, pages["comparison"], scheme=scheme) as opened:
            dark = opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
            assert dark == (scheme == "dark")
            for selector, contrast in opened.page.evaluate(contrasts):
                assert contrast >= 4.5, (scheme, selector)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_many_networks_are_answered_before_anything_is_scrolled(
    browser: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    assert pages["runs"].stat().st_size < 2_000_000
    with Opened(browser, pages["runs"], width, scheme) as opened:
        answer = opened.page.inner_text(".answer strong")
        assert "kind-1/seed-1 at epoch 12" in answer, "which run, which epoch"
        box = opened.page.locator(".answer strong").bounding_box()
        assert box["y"] + box["height"] <= WIDTHS[width]
        caption = opened.page.locator("#table-networks caption").evaluate(
            "caption => { caption.closest('details').open = true; return caption.getBoundingClientRect().width; }"
        )
        assert caption > 60, "captions of tables that become cards stay on one line"
        assert opened.wrong == []


def test_without_scripts_the_tables_are_there(browser: Any, pages: dict[str, Path]) -> None:
    report = Report.load(pages["report"].with_suffix(".json"))
    with Opened(browser, pages["report"], java_script_enabled=False) as opened:
        text = opened.page.inner_text("#table-first-table")
        for name in ("hessian_trace", "rho_sum", "output_margin"):
            assert value_text(report[name]) in text
        opened.page.click("#measures > summary")
        assert opened.page.locator("#table-all-measures math").first.is_visible()


def test_paper_shows_everything(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["comparison"]) as opened:
        opened.page.emulate_media(media="print")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        state = """() => [document.querySelectorAll('details.fold:not([open])').length,
            Array.from(document.querySelectorAll('.plot')).filter(plot => !plot.querySelector('svg')).length]"""
        assert opened.page.evaluate(state) == [0, 0]
        pdf = opened.page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert opened.page.evaluate(state)[0] > 0


def test_the_command_can_be_copied(browser: Any, tmp_path: Path) -> None:
    report = made_report(request={"model": "digits_mlp", "data": "digits", "measures": ["default"]})
    report.html(tmp_path / "r.html")
    with Opened(browser, tmp_path / "r.html") as opened:
        opened.page.click("#settings > summary")
        expected = "spiritlevel measure digits_mlp runs/a.pt --data digits --measures default"
        assert opened.page.inner_text("#settings pre") == expected
        opened.page.click("#settings button.copy")
        opened.page.wait_for_function(
            "['copied', 'selected'].includes(document.querySelector('#settings button.copy').textContent)"
        )
        assert opened.wrong == []


def test_sixty_thousand_samples_are_drawn(browser: Any, tmp_path: Path) -> None:
    page.write(page.of_reports(sampled_report(60_000)), tmp_path / "large.html")
    with Opened(browser, tmp_path / "large.html") as opened:
        opened.open_all()
        points = opened.page.locator(
            "[data-figure=trace_against_aceht] g.mark-symbol:not(.role-legend-symbol) path"
        ).count()
        assert points == 2000
        assert "All 60,000 samples are counted" in opened.page.inner_text("#samples")
        assert opened.wrong == []
