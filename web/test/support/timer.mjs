// How long the page's thread is held up while a text is written.
//
// Time by the clock is also that of whatever else has the cores. So a timer of this process, which has
// nothing to do, runs beside that of the page: where both were held up, the machine was busy, and nothing is
// known of the page.

const TICK_MS = 10;

/** Has a timer run here during `action`; returns what that returns, and the timer's longest gap. */
async function beside(action) {
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
 * Has the page begin a text with `words`, and stop when some more is there. All of it happens in the page: on
 * the way from here to there the text might come to its end.
 *
 * @returns {Promise<{page: number, here: number, label: string, chars: number}>} the longest gap of the
 * page's timer and of this process's, in ms; what the button said before it was pressed, and how long the
 * text was
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
  const [told, here] = await beside(() => page.evaluate(written, words, TICK_MS));
  return { ...told, here };
}
