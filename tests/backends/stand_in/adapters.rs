//! LoRA adapters of a model on two cards: the same bits as on one.

use sterna::backend::cuda::split::Split;
use sterna::program::AdapterScale;
use support::case::model::{Model, SMALL};
use support::case::{limits, shuffled_pages};

use super::child::{WHY, card, everything, everything_on};
use super::tests;
use crate::lora::adapted;

/// A model with pairs of two adapters in all its layers, both of which the sequence uses.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn two_cards_with_adapters_match_one() {
    let (mut case, _) = Model { n_layers: 2, ..SMALL }.case("a small model", limits(70, 1, 2));
    let mut pages = shuffled_pages(1, 2);
    let without = everything(&case, &pages, true);
    case.p.adapters = vec!["one".to_owned(), "two".to_owned()];
    let mut stages = std::mem::take(&mut case.p.stages);
    for linear in stages.iter_mut().flat_map(|(_, stage)| stage.linears_mut()) {
        *linear = adapted(&mut case, linear.clone());
    }
    case.p.stages = stages;
    pages.set_adapters(
        0,
        [(0, 1.0), (1, -0.5)].map(|(adapter, scale)| AdapterScale { adapter, scale }).into(),
    );
    let want = everything(&case, &pages, true);
    assert!(want != without, "the adapters change nothing");
    for by_stage in [true, false] {
        let split = Split::on(vec![card(0), card(1)], None).expect(WHY);
        assert!(everything_on(Box::new(split), &case, &pages, by_stage) == want, "by stage: {by_stage}");
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_two_cards_with_adapters_match_one() {
    for settings in ["card=rtx-3060 card=rtx-3060 seed=1", "card=h100 card=h100 prompt"] {
        tests(settings, "stand_in::adapters::two_cards", 1);
    }
}
