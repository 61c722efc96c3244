//! Tests of the registries, and of the codecs' errors.

mod attention;
mod normal;
mod pages;
mod registry;
mod split;
mod trellis;
mod turboquant;
