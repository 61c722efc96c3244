//! The registries, and what the codecs lose.

mod attention;
mod normal;
mod registry;
mod turboquant;
