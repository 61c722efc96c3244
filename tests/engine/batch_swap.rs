//! Preempted sequences: their pages are copied to host memory and back, or recomputed.

use std::collections::BTreeMap;

use sterna::Error;
use sterna::engine::{BatchOptions, Event, Request, SeqId};
use sterna::program::PAGE;

use super::batch::{Output, alone, engine, greedy, tokens};

/// With pages for one and a half sequences, the newer one waits, is copied back or recomputed, and generates
/// the same text as alone.
#[test]
fn newest_sequence_is_preempted() {
    let engine = engine(|options| options.kv_positions = Some(5 * PAGE));
    let prompts = [tokens(1, 130), tokens(2, 100)];
    let want: Vec<Output> = prompts.iter().map(|prompt| alone(&engine, prompt, &greedy(150))).collect();
    for (prefix_cache, host_bytes) in [(false, 0), (true, 0), (false, 1 << 30), (true, 1 << 30)] {
        let options = BatchOptions { prefix_cache, host_bytes, ..BatchOptions::default() };
        let mut batch = engine.batch(options).unwrap();
        let ids: Vec<SeqId> = prompts
            .iter()
            .map(|prompt| batch.add(&Request::new(prompt.clone(), greedy(150))).unwrap()[0])
            .collect();
        let mut all = BTreeMap::new();
        let mut order = Vec::new();
        let take = |id, event: Event| {
            order.extend(event.end.map(|_| id));
            all.entry(id).or_insert_with(Output::default).take(event);
            Ok::<(), Error>(())
        };
        batch.run(take).unwrap();
        let stats = batch.stats();
        assert!(stats.preemptions > 0);
        match (prefix_cache, host_bytes) {
            (_, 0) => assert!(stats.swapped_out == 0 && stats.prompt_rows > 230, "{stats:?}"),
            // No prompt token ran twice.
            (false, _) => {
                assert_eq!([stats.swapped_out, stats.swapped_in], [stats.preemptions; 2], "{stats:?}");
                assert_eq!(stats.prompt_rows, 230, "{stats:?}");
            }
            // The sequence may find its own pages in the prefix cache, except for less than a page.
            (true, _) => assert!(stats.swapped_in > 0 && stats.prompt_rows < 230 + 64, "{stats:?}"),
        }
        assert_eq!(order, ids, "the older one was delayed");
        assert_eq!(ids.iter().map(|id| all[id].clone()).collect::<Vec<_>>(), want);
        assert_eq!(batch.stats().running + batch.stats().waiting, 0);
    }
}
