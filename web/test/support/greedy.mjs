// The greedy tokens of models, in Node, Deno or a browser.

/**
 * @param load the package's
 * @param cases {file, load, prompts, maxTokens} each, where `file` is a path or a URL
 * @returns {device, plan, texts, tokens} per case
 */
export async function greedy(load, cases, options = {}) {
  const said = [];
  for (const { file, load: how, prompts, maxTokens } of cases) {
    const model = await load(file, { ...options, ...how });
    const answers = prompts.map((prompt) =>
      model.generate(prompt, { temperature: 0, repeatPenalty: 1, maxTokens, ignoreEos: true }),
    );
    const results = await Promise.all(answers.map(({ result }) => result));
    const { device, plan } = model;
    said.push({
      device,
      plan,
      texts: results.map(({ text }) => text),
      tokens: results.map(({ tokens }) => tokens),
    });
    await model.dispose();
  }
  return said;
}
