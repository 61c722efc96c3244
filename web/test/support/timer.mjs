// Measures how long the page's thread is blocked while a text is generated.
//
// Wall-clock time also depends on other processes. So an idle timer of this process runs at the same time as
// the page's: if both were delayed, the machine was busy, and the result says nothing about the page.

const TICK_MS = 10;

/** Runs a timer here during `action`; returns its result, and the timer's longest gap. */
async function withTimer(action) {
  let [longest, before] = [0, performance.now()];
  const tick = () => {
    const now = performance.now();
    [longest, before] = [Math.max(longest, now - before), now];
  };
  const timer = setInterval(tick, TICK_MS);
  try {
    const value = await action();
    tick();
    return [value, longest];
  } finally {
    clearInterval(timer);
  }
}

/**
 * Makes the page generate a text after `words`, and stop it after a while. All of this runs in the page,
 * because otherwise the text might end before the stop arrives.
 *
 * @returns {Promise<{page: number, here: number, label: string, chars: number}>} the longest gap of the
 * page's timer and of this process's, in ms; the button's label before it was pressed, and the length of the
 * text
 */
export async function stopped(page, words) {
  const written = async (words, tick) => {
    const [field, button, turns] = ["prompt", "send", "turns"].map((id) => document.getElementById(id));
    document.getElementById("new").click();
    field.value = words;
    field.form.requestSubmit();
    let [longest, before] = [0, performance.now()];
    await new Promise((resolve) => {
      const timer = setInterval(() => {
        const now = performance.now();
        [longest, before] = [Math.max(longest, now - before), now];
        if (turns.textContent.length < words.length + 40) return;
        clearInterval(timer);
        resolve();
      }, tick);
    });
    const [label, chars] = [button.getAttribute("aria-label"), turns.textContent.length];
    button.click();
    return { page: longest, label, chars };
  };
  const [told, here] = await withTimer(() => page.evaluate(written, words, TICK_MS));
  return { ...told, here };
}
