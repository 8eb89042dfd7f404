"""OpenTelemetry in worker processes."""

from tests.worker.processes import Site

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_the_spans_of_a_worker_under_a_supervisor_are_exported_by_its_end(site: Site) -> None:
    site.env["DJANGO_SETTINGS_MODULE"] = "tests.worker.traced_settings"
    site.send("a", trace_id=f"00-{TRACE}-b7ad6b7169203331-01")
    worker = site.worker("--processes", "1")
    assert site.line.next_of("a").what == "ran"
    assert worker.stop() == 0
    assert f"process run: a of ['{TRACE}']" in worker.text
