// The tables of a step: one buffer of words, written by step.rs. Words 0 to 3 are counts, 4 to 7 and 9 to 16
// are the offsets of the tables in words, and word 8 is 0.
@group(0) @binding(1) var<storage, read> step: array<u32>;

const PAGE_POSITIONS: u32 = 64u;

struct Row {
    token: u32,
    pos: u32,
    seq: u32,
}

// Consecutive rows of one sequence, and the slots of its state: `origin` is read before the first row (all
// bits set if the sequence begins), and `to` is written after the last. The states after `n_kept` earlier
// rows, the first of them row `first_kept` of the run, are written as well: word `kept` + i has the slot of
// row i.
struct Run {
    first: u32,
    rows: u32,
    origin: u32,
    to: u32,
    kept: u32,
    first_kept: u32,
    n_kept: u32,
}

fn step_rows() -> u32 {
    return step[0];
}

fn step_outputs() -> u32 {
    return step[1];
}

fn step_sampled() -> u32 {
    return step[2];
}

// 0, unknown to the compiler.
fn step_zero() -> u32 {
    return step[8];
}

fn step_row(r: u32) -> Row {
    let at = step[5] + 3u * r;
    return Row(step[at], step[at + 1u], step[at + 2u]);
}

fn step_run(i: u32) -> Run {
    let at = step[12] + 7u * i;
    return Run(
        step[at], step[at + 1u], step[at + 2u], step[at + 3u], step[at + 4u], step[at + 5u], step[at + 6u]
    );
}

// Slot for the state after row i of a run: that of the run, if no other one is given.
fn state_after(run: Run, i: u32) -> u32 {
    if (i - run.first_kept < run.n_kept) {
        return step[run.kept + i];
    }
    return run.to;
}

#if of_encoder
// The position of the last row of a row's sequence.
fn row_end(r: u32) -> u32 {
    return step[step[13] + 6u * r];
}

// The type of a row's token.
fn row_type(r: u32) -> u32 {
    return step[step[13] + 6u * r + 1u];
}

// The position after the last row of a row's image; 0 if the row is not of an image.
fn row_image_end(r: u32) -> u32 {
    return step[step[13] + 6u * r + 2u];
}

// The rotary position of a row on an axis: time, row or column.
fn row_place(r: u32, axis: u32) -> u32 {
    return step[step[13] + 6u * r + 3u + axis];
}

#endif
// The row of the step that the o-th row of logits belongs to.
fn output_row(o: u32) -> u32 {
    return step[step[6] + o];
}

// The page of a position, from the tables that begin `tables` words after the first ones; each sequence has
// step[3] entries per table.
fn page_of(tables: u32, seq: u32, pos: u32) -> u32 {
    return step[step[7] + tables + seq * step[3] + pos / PAGE_POSITIONS];
}

// The exact page of a page of a sequence; all bits set if it does not have one.
fn exact_page_of(seq: u32, page: u32) -> u32 {
    return step[step[9] + seq * step[3] + page];
}

// The i-th row that fills a page.
fn filled_row(i: u32) -> u32 {
    return step[step[10] + i];
}

// First row of a tile; `tile_rows` is its number of rows.
fn tile_row(i: u32) -> u32 {
    return step[step[11] + 2u * i];
}

fn tile_rows(i: u32) -> u32 {
    return step[step[11] + 2u * i + 1u];
}
