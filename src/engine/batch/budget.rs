//! Number of prompt rows that fit into a step next to decoding sequences, given a target time.

use std::time::Duration;

/// Weight of the newest measurement in a moving average.
const NEWEST: f64 = 0.25;
/// Minimum number of prompt rows in a step, so that every prompt finishes eventually.
const LEAST: usize = 8;
/// Rows of the first step, before anything has been measured.
const FIRST: usize = 16;

/// Time that embedding or reranking may add to a step that decodes, as a fraction of its decode time.
const POOLED: f64 = 1.0 / 3.0;

/// Measures steps, and computes how many rows fit into the target time.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    target: f64,
    /// Seconds of a step that only decodes.
    fixed: Option<f64>,
    /// Seconds that one prompt row adds.
    a_row: Option<f64>,
    /// Prompt rows of the last step that had any.
    last: usize,
}

impl Budget {
    /// A budget for steps that take `target`.
    pub fn new(target: Duration) -> Self {
        Self { target: target.as_secs_f64(), fixed: None, a_row: None, last: FIRST }
    }

    /// Prompt rows for the next step, next to decoding sequences.
    pub fn rows(&self) -> usize {
        let Some(a_row) = self.a_row else { return FIRST };
        let left = self.target - self.fixed.unwrap_or(0.0);
        let rows = (left / a_row.max(1e-9)) as usize;
        // The first measurement may be far off, so the number at most doubles per step.
        rows.min(2 * self.last).max(LEAST)
    }

    /// Rows for embedding or reranking in the next step, next to decoding sequences, which should hardly slow
    /// down.
    pub fn pooled_rows(&self) -> usize {
        let (Some(fixed), Some(a_row)) = (self.fixed, self.a_row) else { return 1 };
        ((POOLED * fixed / a_row.max(1e-9)) as usize).clamp(1, self.rows())
    }

    /// Records the time of a step with `rows` prompt rows; `decoded` is true if sequences decoded in the same
    /// step.
    pub fn add(&mut self, rows: usize, decoded: bool, time: Duration) {
        let seconds = time.as_secs_f64();
        let newer = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + NEWEST * (new - old)));
        match (rows, decoded) {
            (0, _) => self.fixed = newer(self.fixed, seconds),
            (_, true) => {
                let variable = (seconds - self.fixed.unwrap_or(0.0)).max(0.0);
                self.a_row = newer(self.a_row, variable / rows as f64);
                self.last = rows;
            }
            // Steps without decoding predict little about the next mixed step.
            (_, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_near_the_target() {
        let (fixed, a_row, target) = (0.050, 0.006, Duration::from_millis(200));
        let mut budget = Budget::new(target);
        budget.add(0, true, Duration::from_secs_f64(fixed));
        let mut time = 0.0;
        for _ in 0..20 {
            let rows = budget.rows();
            time = fixed + a_row * rows as f64;
            budget.add(rows, true, Duration::from_secs_f64(time));
        }
        assert!((0.19..=0.2).contains(&time), "{time}");
    }

    #[test]
    fn embedded_texts_add_a_third() {
        let mut budget = Budget::new(Duration::from_millis(200));
        assert_eq!(budget.pooled_rows(), 1);
        budget.add(0, true, Duration::from_millis(50));
        budget.add(16, true, Duration::from_millis(98));
        assert_eq!(budget.pooled_rows(), 5);
        // Never more than the prompt rows.
        budget.add(0, true, Duration::from_millis(1000));
        assert_eq!(budget.pooled_rows(), LEAST);
    }

    #[test]
    fn prompts_go_on_even_if_the_target_is_missed() {
        let mut budget = Budget::new(Duration::from_millis(10));
        budget.add(0, true, Duration::from_millis(50));
        budget.add(16, true, Duration::from_millis(150));
        assert_eq!(budget.rows(), LEAST);
    }
}
