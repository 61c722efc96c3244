//! Number of prompt rows that a step takes beside sequences that decode: as many as a target time allows.

use std::time::Duration;

/// Weight of the newest measurement in a moving average.
const NEWEST: f64 = 0.25;
/// Rows of prompts that a step takes at least, so that prompts come to an end.
const LEAST: usize = 8;
/// Rows of the first step, before any is measured.
const FIRST: usize = 16;

/// What texts that are embedded or ranked may add to a step that only decodes, of its own time.
const POOLED: f64 = 1.0 / 3.0;

/// Measures steps, and says how many rows fit into a time.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    target: f64,
    /// Seconds of a step that only decodes.
    fixed: Option<f64>,
    /// Seconds that one row of a prompt adds.
    a_row: Option<f64>,
    /// Rows of the last step that had any.
    last: usize,
}

impl Budget {
    /// A budget for steps of `target`.
    pub fn new(target: Duration) -> Self {
        Self { target: target.as_secs_f64(), fixed: None, a_row: None, last: FIRST }
    }

    /// Rows of prompts for the next step, beside sequences that decode.
    pub fn rows(&self) -> usize {
        let Some(a_row) = self.a_row else { return FIRST };
        let left = self.target - self.fixed.unwrap_or(0.0);
        let rows = (left / a_row.max(1e-9)) as usize;
        // A first measurement may be far off: growth is by steps.
        rows.min(2 * self.last).max(LEAST)
    }

    /// Rows of texts that are embedded or ranked for the next step, beside sequences that decode, which are
    /// to notice little of them.
    pub fn pooled_rows(&self) -> usize {
        let (Some(fixed), Some(a_row)) = (self.fixed, self.a_row) else { return 1 };
        ((POOLED * fixed / a_row.max(1e-9)) as usize).clamp(1, self.rows())
    }

    /// Takes the time of a step with `rows` rows of prompts, and whether sequences decoded beside them.
    pub fn add(&mut self, rows: usize, decoded: bool, time: Duration) {
        let seconds = time.as_secs_f64();
        let newer = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| old + NEWEST * (new - old)));
        match (rows, decoded) {
            (0, _) => self.fixed = newer(self.fixed, seconds),
            (_, true) => {
                let beside = (seconds - self.fixed.unwrap_or(0.0)).max(0.0);
                self.a_row = newer(self.a_row, beside / rows as f64);
                self.last = rows;
            }
            // Rows without anything beside them say little about the next mixed step.
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
        // Never more than a prompt's.
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
