//! Names that a rewritten template has in addition to its own: filters, a test and a macro.

/// Name of the filter that charges what it is given and gives it back.
pub const CHARGE: &str = "charge__";
/// Name of the filter for the operands of `~`.
pub const PRINTED: &str = "printed__";
/// Name of the filter for what a loop goes over.
pub const ITERATED: &str = "iterated__";
/// Name of the filter for `a * b`.
pub const TIMES: &str = "times__";
/// Name of the filter for `-a`.
pub const NEGATIVE: &str = "negative__";
/// Name of the filter for `+a`.
pub const POSITIVE: &str = "positive__";
/// Name of the filter for `a % b`.
pub const FILLED: &str = "filled__";
/// Name of the filter for a comparison or several in a chain.
pub const COMPARED: &str = "compared__";
/// Name of the filter for `a[b:c:d]`.
pub const SLICED: &str = "sliced__";
/// Name of the filter for `loop.cycle(…)`.
pub const CYCLED: &str = "cycled__";
/// Name of the filter for `map.items` and the like, where nothing is called.
pub const METHOD: &str = "method__";
/// Name of the filter that makes of minijinja's macro one of Jinja2.
pub const MACRO: &str = "macro__";
/// Name of the macro that is the content of a call block.
pub const CALLER: &str = "caller__";
/// Name of the test for an argument that a macro was not given.
pub const MISSING: &str = "missing__";
