//! Settings of the stand-in driver, from the variable `STAND_IN_CUDA`: words separated by spaces.
//!
//! ```text
//! card=h100            a card of the table, one word per card; `card=none` for none [default: rtx-5080]
//! memory=512           MiB of every card [default: the card's own]
//! optin=1              shared memory per block in bytes, reported by every card [default: the card's own]
//! driver=12.8          CUDA version of the driver [default: 13.0]
//! prompt               streams work at once instead of when waited for
//! apart                no card can access another one's memory
//! ordered              no kernel starts before the preceding one has ended
//! seed=7               order in which the threads of a block run
//! wrong=attend__f16    launches of this kernel do nothing; `wrong=attend__f16@graph` only in graphs
//! fail=cuGraphLaunch@3 the third call fails as if the card were lost, and so does every later call
//! refuse=cuMemHostAlloc@3  only the third call fails
//! pinned=64            MiB of the host that can be page-locked [default: all]
//! timeline=FILE        writes the timeline to a file (`timeline.rs`)
//! link=25              GB/s of copies from the host in the timeline
//! kernel=10            microseconds per kernel in the timeline
//! ```

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;

use sterna::backend::cuda::driver::cards::Spec;

pub struct Settings {
    pub cards: Vec<Spec>,
    /// Shared memory per block in bytes, as reported.
    pub optin: Option<i32>,
    pub driver: (i32, i32),
    pub prompt: bool,
    pub apart: bool,
    pub ordered: bool,
    pub seed: u64,
    /// Name of a kernel, and whether it is wrong only in graphs.
    pub wrong: Option<(CString, bool)>,
    /// Number of the call at which the card is lost, by function.
    pub fail: HashMap<String, u32>,
    /// Number of the call that fails once, by function.
    pub refuse: HashMap<String, u32>,
    /// Bytes of host memory that can be page-locked.
    pub pinned: u64,
    pub timeline: Option<PathBuf>,
    pub link: f64,
    pub kernel_ns: u64,
}

impl Settings {
    /// # Panics
    /// If a word is not in the list.
    pub fn read() -> Self {
        let text = std::env::var("STAND_IN_CUDA").unwrap_or_default();
        let mut settings = Self {
            cards: Vec::new(),
            optin: None,
            driver: (13, 0),
            prompt: false,
            apart: false,
            ordered: false,
            seed: 0,
            wrong: None,
            fail: HashMap::new(),
            refuse: HashMap::new(),
            pinned: u64::MAX,
            timeline: None,
            link: 25.0,
            kernel_ns: 10_000,
        };
        let (mut memory, mut none) = (None, false);
        for word in text.split_whitespace() {
            settings.take(word, &mut memory, &mut none).unwrap_or_else(|| panic!("STAND_IN_CUDA: `{word}`"));
        }
        if settings.cards.is_empty() && !none {
            settings.cards.extend(Spec::find("rtx-5080"));
        }
        if let Some(mib) = memory {
            settings.cards.iter_mut().for_each(|card| card.memory_bytes = mib << 20);
        }
        settings
    }

    fn take(&mut self, word: &str, memory: &mut Option<u64>, none: &mut bool) -> Option<()> {
        match word.split_once('=') {
            None if word == "prompt" => self.prompt = true,
            None if word == "apart" => self.apart = true,
            None if word == "ordered" => self.ordered = true,
            Some(("card", "none")) => *none = true,
            Some(("card", name)) => self.cards.push(*Spec::find(name)?),
            Some(("memory", mib)) => *memory = Some(mib.parse().ok()?),
            Some(("optin", bytes)) => self.optin = Some(bytes.parse().ok()?),
            Some(("driver", version)) => {
                let (major, minor) = version.split_once('.')?;
                self.driver = (major.parse().ok()?, minor.parse().ok()?);
            }
            Some(("seed", seed)) => self.seed = seed.parse().ok()?,
            Some(("wrong", kernel)) => {
                let name = kernel.strip_suffix("@graph");
                self.wrong = Some((CString::new(name.unwrap_or(kernel)).ok()?, name.is_some()));
            }
            Some(("fail", call)) => {
                let (name, n) = call.split_once('@')?;
                self.fail.insert(name.to_owned(), n.parse().ok()?);
            }
            Some(("refuse", call)) => {
                let (name, n) = call.split_once('@')?;
                self.refuse.insert(name.to_owned(), n.parse().ok()?);
            }
            Some(("pinned", mib)) => self.pinned = mib.parse::<u64>().ok()? << 20,
            Some(("timeline", file)) => self.timeline = Some(file.into()),
            Some(("link", rate)) => self.link = rate.parse().ok()?,
            Some(("kernel", us)) => self.kernel_ns = 1000 * us.parse::<u64>().ok()?,
            _ => return None,
        }
        Some(())
    }
}
