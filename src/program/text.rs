//! A program as text: what `sterna inspect` prints and what the snapshot tests hold.
