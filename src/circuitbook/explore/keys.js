// Arrow keys inside a group of buttons: one Tab stop for the group, as in a toolbar.
function rove(group, columns) {
  const buttons = () => [...group.querySelectorAll("button")];
  function stop(chosen) {
    for (const button of buttons()) button.tabIndex = button === chosen ? 0 : -1;
  }
  group.addEventListener("focusin", (event) => stop(event.target));
  group.addEventListener("keydown", (event) => {
    const all = buttons();
    const at = all.indexOf(event.target);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    let to = null;
    if (step) to = at + step;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = all.length - 1;
    if (at < 0 || to === null) return;
    event.preventDefault();
    if (all[to]) all[to].focus();
  });
  return stop;
}
