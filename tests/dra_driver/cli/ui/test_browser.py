"""`dractl ui` in a real browser, on a simulated cluster whose node plugin is the real program.

With GPU_DRA_TEST_AXE, the path of axe-core's axe.min.js, that also looks for what keeps people from using the pages.
Our own checks of contrast, names and headings run without it.
"""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import BROWSER, BrowserPage, browser
from support.objects import claim, pod
from support.places import SHORT

from dra_driver.api.meta import PODS, RESOURCE_CLAIMS
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")

AXE = os.environ.get("GPU_DRA_TEST_AXE")
_AXE = """axe.run(document, {resultTypes: ["violations"]}).then((answer) => answer.violations.map(
  (item) => `${item.id}: ${item.help}: ${item.nodes.map((node) => node.target).slice(0, 3)}`))"""
_OWN_CHECKS = r"""(() => {
  const problems = [];
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((item) => Number(item.localName[1]));
  if (levels.lastIndexOf(1) !== 0) problems.push("headings do not begin with the only h1");
  if (levels.some((level, place) => place && level > levels[place - 1] + 1)) problems.push("a level is left out");
  for (const name of ["header", "main", "nav"]) if (!document.querySelector(name)) problems.push(`no ${name}`);
  for (const item of document.querySelectorAll("a, button, input, select, [role=img]")) {
    const name = item.textContent.trim() || item.getAttribute("aria-label") || (item.labels || [])[0];
    if (!name) problems.push(`no name: ${item.outerHTML.slice(0, 80)}`);
  }
  for (const item of document.querySelectorAll("table"))
    if (!item.caption || !item.querySelector("th[scope]")) problems.push("a table without caption or headings");
  const ids = [...document.querySelectorAll("[id]")].map((item) => item.id);
  if (new Set(ids).size !== ids.length) problems.push("an ID twice");
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (color) => { const [r, g, b] = color.map((part) => {
    const value = part / 255; return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (item) => { for (let at = item; at; at = at.parentElement) {
    const color = rgb(getComputedStyle(at).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color.slice(0, 3); }
    return [255, 255, 255]; };
  for (const item of document.querySelectorAll("body *")) {
    const own = [...item.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !item.checkVisibility()) continue;
    const pair = [light(rgb(getComputedStyle(item).color).slice(0, 3)), light(behind(item))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${item.outerHTML.slice(0, 80)}`);
  }
  return problems;
})()"""


@asynccontextmanager
async def serving(kubeconfig: Path) -> AsyncIterator[str]:
    """Yields the address that `dractl ui` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dra_driver.cli", "ui", "--port", "0", "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    finally:
        process.terminate()
        assert await process.wait() == 0, "it ends at once, and in order"


async def accessible(page: BrowserPage) -> list[Any]:
    problems = await page.value(_OWN_CHECKS)
    if AXE is not None:
        await page.value(f"{Path(AXE).read_text()};0")
        problems += await page.value(_AXE)
    return list(problems)


async def test_the_pages_in_a_browser(tmp_path: Path) -> None:
    """One cluster and one browser for all of it: both take long to start."""
    # A folder of pytest would be too long for sockets.
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes("t4,gb200")) as cluster:
            await _look(cluster, tmp_path)


async def _look(cluster: SimulatedCluster, folder: Path) -> None:
    async with serving(cluster.kubeconfig) as address, browser(folder) as page:
        root = address.partition("/enter")[0]
        await page.open(address)
        await page.until("location.pathname === '/' && document.getElementById('live').textContent === 'live'")
        await page.until("document.querySelectorAll('.gpu.free').length === 8")
        await _follows_a_fault_without_a_reload(cluster, page)
        await _filters(page)
        await _can_be_used_with_the_keyboard(page)
        await cluster.kube.create(RESOURCE_CLAIMS, claim("later", requests=[f"gpu-{number}" for number in range(9)]))
        await cluster.kube.create(PODS, pod("later", ["later"], node_name=None))
        await page.until("document.getElementById('alerts').textContent.includes('1 pod waiting')")
        for path in ("/", "/?view=signs", "/nodes/t4-1", "/waiting", "/waiting/default/later", "/domains"):
            for scheme, width in (("light", 400), ("dark", 1280)):
                await page.looks(width=width, scheme=scheme)
                await page.open(root + path)
                await page.until("document.getElementById('live').textContent === 'live'")
                assert await accessible(page) == [], (path, scheme)
                assert await page.value("document.documentElement.scrollWidth <= innerWidth"), (path, width)
        assert page.errors == []


async def _follows_a_fault_without_a_reload(cluster: SimulatedCluster, page: BrowserPage) -> None:
    await page.value("window.same = true")
    name = await page.value("document.querySelector('#node-t4-1 .gpu').title.split(':')[0]")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dra_driver.cli", "simulate", "t4-1", "xid", name, "79"),
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    await page.until("document.querySelectorAll('#node-t4-1 .gpu.unhealthy').length === 1")
    assert await page.value(
        "document.querySelector('#node-t4-1 .gpu.unhealthy').title.includes('gpu.nvidia.com/xid=79')"
    )
    assert await page.value("document.querySelector('.nodes').firstElementChild.id") == "node-t4-1", "problems first"
    assert "1 unhealthy" in await page.value("document.getElementById('alerts').textContent")
    assert await page.value("window.same"), "the page was not loaded again"
    await page.value("document.querySelector('#node-t4-1 a[href*=\"gpus/\"][href]').focus()")
    await page.open(re.sub("[?#].*", "", await page.value("document.querySelector('.gpu.unhealthy a').href")))
    await page.until("document.getElementById('history').textContent.includes('GpuUnhealthy')")
    assert "Xid 79" in await page.value("document.getElementById('health').textContent")
    await page.value("history.back()")
    await page.until("location.pathname === '/' && document.getElementById('filter')")


async def _filters(page: BrowserPage) -> None:
    await page.value("document.querySelector('input[name=filter]').focus()")
    await page.call("Input.insertText", text="gb200")
    await page.until("document.querySelectorAll('.node').length === 1 && document.getElementById('node-gb200-1')")
    assert await page.value("location.search") == "?filter=gb200&sort=problems"
    assert await page.value("document.activeElement.name") == "filter", "the focus stays"
    await page.until("document.getElementById('live').textContent === 'live'")
    await page.value("document.querySelector('input[name=filter]').value = ''")
    await page.value("document.getElementById('filter').dispatchEvent(new Event('input'))")
    await page.until("document.querySelectorAll('.node').length === 2")


async def _can_be_used_with_the_keyboard(page: BrowserPage) -> None:
    await page.value("document.activeElement.blur()")
    await page.press("Tab", 9)
    seen = []
    for _ in range(12):
        seen.append(await page.value("document.activeElement.name || document.activeElement.textContent.trim()"))
        outline = await page.value("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
        await page.press("Tab", 9)
    assert {"sort", "view", "t4-1"} <= set(seen), seen
