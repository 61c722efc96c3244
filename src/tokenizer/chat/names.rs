//! Names that rewriting adds to a template: filters, a test and a macro.

/// Name of the filter that charges its input and returns it.
pub const CHARGE: &str = "charge__";
/// Name of the filter for the operands of `~`.
pub const PRINTED: &str = "printed__";
/// Name of the filter for the items of a loop.
pub const ITERATED: &str = "iterated__";
/// Name of the filter for `a * b`.
pub const TIMES: &str = "times__";
/// Name of the filter for `-a`.
pub const NEGATIVE: &str = "negative__";
/// Name of the filter for `+a`.
pub const POSITIVE: &str = "positive__";
/// Name of the filter for `a % b`.
pub const FILLED: &str = "filled__";
/// Name of the filter for one or several chained comparisons.
pub const COMPARED: &str = "compared__";
/// Name of the filter for `a[b:c:d]`.
pub const SLICED: &str = "sliced__";
/// Name of the filter for `loop.cycle(…)`.
pub const CYCLED: &str = "cycled__";
/// Name of the filter for `map.items` and the like when they are not called.
pub const METHOD: &str = "method__";
/// Name of the filter that turns minijinja's macro into one of Jinja2.
pub const MACRO: &str = "macro__";
/// Name of the macro that holds the content of a call block.
pub const CALLER: &str = "caller__";
/// Name of the test for an argument that was not passed to a macro.
pub const MISSING: &str = "missing__";
