//! Prints a report as Markdown tables.

use std::io::{self, Write};

use super::super::units::counted;
use super::{Distance, Estimate, LayerLine, Line, Report, SpreadLine};

/// If the reference finds fewer needles than this, the losses of other caches are not meaningful.
const TOO_FEW: f64 = 0.05;

impl Report {
    /// Writes the report as Markdown.
    pub fn tables(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{}, {} of {} tokens, {} scored",
            self.model,
            counted(self.chunks, "chunk"),
            self.n_ctx,
            self.scored
        )?;
        writeln!(out)?;
        self.caches(out)?;
        if !self.layers.is_empty() {
            writeln!(out)?;
            self.layers(out)?;
        }
        if !self.caches[0].needles.is_empty() {
            writeln!(out)?;
            self.needles(out)?;
        }
        Ok(())
    }

    fn caches(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "| cache | bytes per token | bytes of {} positions | perplexity | attention KL | mean KL \
             | max KL | same top |",
            self.n_ctx
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|")?;
        for Line { cache, bytes_a_token, bytes, perplexity: ppl, distance, .. } in &self.caches {
            write!(
                out,
                "| {cache} | {bytes_a_token} | {bytes} | {:.4} +/- {:.4} |",
                ppl.value, ppl.std_error
            )?;
            match distance {
                None => writeln!(out, " | | | |")?,
                Some(Distance { attention_kl, mean_kl, max_kl, same_top }) => {
                    let Estimate { value, std_error } = *same_top;
                    writeln!(
                        out,
                        " {} | {} | {max_kl:.6} | {:.3} +/- {:.3} % |",
                        kl(*attention_kl),
                        kl(*mean_kl),
                        100.0 * value,
                        100.0 * std_error
                    )?;
                }
            }
        }
        Ok(())
    }

    fn layers(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = ["kurtosis", "channel mean", "sink norm"];
        let columns = ["K", "V"].iter().flat_map(|side| columns.map(|what| format!("{side} {what}")));
        writeln!(out, "| layer | {} |", columns.collect::<Vec<_>>().join(" | "))?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for LayerLine { layer, keys, values } in &self.layers {
            write!(out, "| {layer} |")?;
            for SpreadLine { kurtosis, channel_mean, sink_norm } in [keys, values] {
                write!(out, " {kurtosis:.2} | {channel_mean:.2} | {sink_norm:.2} |")?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Share of retrieved needles and mean of ln p, by depth.
    fn needles(&self, out: &mut impl Write) -> io::Result<()> {
        let names: Vec<_> = self.caches.iter().map(|line| line.cache.as_str()).collect();
        writeln!(out, "| needles at | {} |", names.join(" | "))?;
        writeln!(out, "|---{}|", "|---".repeat(names.len()))?;
        for (i, at) in self.caches[0].needles.iter().enumerate() {
            write!(out, "| {} % |", at.depth)?;
            for line in &self.caches {
                let needle = &line.needles[i];
                write!(out, " {:.1} %, {:.2} |", 100.0 * needle.retrieved.value, needle.log_prob.value)?;
            }
            writeln!(out)?;
        }
        let base = &self.caches[0];
        let found = base.needles.iter().map(|needle| needle.retrieved.value).sum::<f64>();
        let found = found / base.needles.len() as f64;
        if found < TOO_FEW {
            writeln!(out)?;
            writeln!(
                out,
                "With {} this model finds {:.1} % of the needles: too few to compare cache types.",
                base.cache,
                100.0 * found
            )?;
        }
        Ok(())
    }
}

fn kl(estimate: Estimate) -> String {
    format!("{:.6} +/- {:.6}", estimate.value, estimate.std_error)
}
