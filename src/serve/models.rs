//! The models of a server, and which of them are loaded.
//!
//! A model is loaded for its first request, on its own thread, one model at a time; requests of loaded models
//! continue meanwhile. If there is no room, the least recently requested model is unloaded, preferring models
//! without running requests. A model that is unloaded gets no new requests; its running requests are
//! completed, and then its memory is freed.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::error::ApiError;
use super::instance::{Instance, MemoryPermit, ModelBudget};
use super::model::{LoadError, ModelSource};
use super::status::{Life, Phase, Snapshot};

/// State of a model, for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not requested yet, or unloaded.
    Unloaded,
    /// Loading.
    Loading,
    /// Loaded.
    Loaded,
    /// Failed to load; the next request tries again.
    Failed,
}

impl Status {
    /// Name in llama-server's API, which calls a failed model unloaded.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unloaded | Self::Failed => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
        }
    }
}

/// Result of loading, for a waiting request. It contains the model, so that the model cannot be unloaded
/// before its requests have reached it.
type LoadResult = Result<Arc<Instance>, String>;

enum ModelState {
    Empty,
    /// Requests that wait for the model.
    Loading(Vec<oneshot::Sender<LoadResult>>),
    Loaded {
        instance: Arc<Instance>,
        /// Time of its last request, in numbers of requests.
        used: u64,
    },
    Failed,
}

impl ModelState {
    /// Sends the result to the waiting requests.
    fn tell(self, result: impl Fn() -> LoadResult) {
        if let Self::Loading(waiting) = self {
            // Some of the receivers may be gone.
            waiting.into_iter().for_each(|sender| drop(sender.send(result())));
        }
    }
}

struct State {
    /// One per source.
    models: Vec<ModelState>,
    /// Number of requests so far.
    clock: u64,
    /// All instances in memory: loaded ones, and unloaded ones that still have running requests.
    alive: Vec<Weak<Instance>>,
    threads: Vec<(usize, JoinHandle<()>)>,
    /// True while a model is loaded once more, to replace the loaded one.
    is_reloading: bool,
}

/// All models of a server.
pub struct Models {
    sources: Vec<ModelSource>,
    /// True if requests choose the model by name. A single model accepts any name.
    pub by_name: bool,
    /// Budget for loaded models.
    pub budget: Arc<ModelBudget>,
    state: Mutex<State>,
    /// Held by the thread that is loading.
    load_lock: Mutex<()>,
}

/// Result of looking up a model for a request.
enum Admission {
    Instance(Arc<Instance>),
    /// The request does not wait for the model.
    Loading,
    Waiting(oneshot::Receiver<LoadResult>),
    /// The caller has to load it.
    Begun(oneshot::Receiver<LoadResult>),
}

impl Models {
    /// Models of `sources`, at least one; requests without a name use the first.
    pub fn new(sources: Vec<ModelSource>, by_name: bool, budget: Arc<ModelBudget>) -> Self {
        let models = sources.iter().map(|_| ModelState::Empty).collect();
        let (alive, threads) = (Vec::new(), Vec::new());
        let state = State { models, clock: 0, alive, threads, is_reloading: false };
        Self { sources, by_name, budget, state: Mutex::new(state), load_lock: Mutex::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sources with their status and instance.
    pub fn list(&self) -> Vec<(&ModelSource, Status, Option<Arc<Instance>>)> {
        let state = self.state();
        let of = |(source, model)| match model {
            &ModelState::Empty => (source, Status::Unloaded, None),
            ModelState::Loading(_) => (source, Status::Loading, None),
            ModelState::Loaded { instance, .. } => (source, Status::Loaded, Some(Arc::clone(instance))),
            ModelState::Failed => (source, Status::Failed, None),
        };
        self.sources.iter().zip(&state.models).map(of).collect()
    }

    /// Index of the requested model. Ollama's clients write `NAME:latest`.
    ///
    /// # Errors
    /// 404 for an unknown model.
    pub fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name.filter(|_| self.by_name) else { return Ok(0) };
        let at = |name: &str| self.sources.iter().position(|source| source.is_called(name));
        let found = at(name).or_else(|| at(name.strip_suffix(":latest")?));
        found.ok_or_else(|| ApiError::unknown_model(name))
    }

    /// The source of a model.
    pub fn source(&self, at: usize) -> &ModelSource {
        &self.sources[at]
    }

    /// Returns the model. If it is not loaded or loading, `load` starts a thread that loads it. The request
    /// waits if it chose the model by name, or if the model is being replaced.
    ///
    /// # Errors
    /// 500 if it could not be loaded; 503 while the only model is loading.
    pub async fn get(
        &self,
        at: usize,
        load: impl FnOnce() -> Result<JoinHandle<()>, ApiError>,
    ) -> Result<Arc<Instance>, ApiError> {
        let result = match self.look(at) {
            Admission::Instance(instance) => return Ok(instance),
            Admission::Loading => return Err(ApiError::unavailable("Loading model")),
            Admission::Waiting(result) => result,
            Admission::Begun(result) => {
                match load() {
                    Ok(thread) => self.state().threads.push((at, thread)),
                    Err(err) => {
                        self.failed(at, &err.message);
                        return Err(err);
                    }
                }
                result
            }
        };
        match result.await {
            Ok(Ok(instance)) => Ok(instance),
            Ok(Err(why)) => Err(ApiError::ours(why)),
            Err(_) => Err(ApiError::unavailable("the server is shutting down")),
        }
    }

    /// Starts to load the first model with `load`, before the first request.
    ///
    /// # Errors
    /// Errors of `load`.
    pub fn first<E>(&self, load: impl FnOnce() -> Result<JoinHandle<()>, E>) -> Result<(), E> {
        if let Admission::Begun(_) = self.look(0) {
            let thread = load()?;
            self.state().threads.push((0, thread));
        }
        Ok(())
    }

    fn look(&self, at: usize) -> Admission {
        let mut state = self.state();
        state.clock += 1;
        let now = state.clock;
        let (sender, result) = oneshot::channel();
        let waits = self.by_name || state.is_reloading;
        match &mut state.models[at] {
            ModelState::Loaded { instance, used } => {
                *used = now;
                return Admission::Instance(Arc::clone(instance));
            }
            ModelState::Loading(waiting) if waits => {
                waiting.push(sender);
                return Admission::Waiting(result);
            }
            ModelState::Loading(_) => return Admission::Loading,
            ModelState::Empty | ModelState::Failed => {}
        }
        state.models[at] = ModelState::Loading(vec![sender]);
        state.threads.retain(|(_, thread)| !thread.is_finished());
        Admission::Begun(result)
    }

    /// Loads a model with `load`, one at a time, once there is room. If the device has too little memory
    /// although the budget allows the model, other models are unloaded as well.
    ///
    /// # Errors
    /// The model could not be loaded.
    pub fn load<T>(
        &self,
        at: usize,
        life: &Life,
        load: impl Fn(super::model::Loaded) -> Result<T, LoadError>,
    ) -> Result<(T, Arc<MemoryPermit>), LoadError> {
        let _load_lock = self.load_lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let opened = (self.sources[at].open)()?;
            let permit = self.permit(opened.bytes, life)?;
            let err = match (opened.load)().and_then(&load) {
                Ok(loaded) => return Ok((loaded, permit)),
                Err(err) => err,
            };
            let is_short = is_about_memory(&*err);
            drop(permit);
            let (models, returns) = self.budget.count();
            if !is_short || models == 0 {
                return Err(err);
            }
            let mut gave_way = self.give_way();
            while !self.budget.wait(returns) {
                is_ending(life)?;
                gave_way = gave_way || self.give_way();
            }
        }
    }

    /// Gets a permit for `bytes`. Unloads models one at a time until there is room.
    fn permit(&self, bytes: u64, life: &Life) -> Result<Arc<MemoryPermit>, LoadError> {
        // A model that has just been loaded may not be listed yet; it cannot be unloaded until then.
        let mut asked = None;
        loop {
            let returns = match self.budget.take(bytes) {
                Ok(permit) => return Ok(permit),
                Err(Some(returns)) => returns,
                Err(None) => {
                    let most = self.budget.most_bytes;
                    return Err(OverBudget { bytes, most }.into());
                }
            };
            if asked != Some(returns) && self.give_way() {
                asked = Some(returns);
            }
            self.budget.wait(returns);
            is_ending(life)?;
        }
    }

    /// Unloads the least needed model. `false` if none is loaded.
    fn give_way(&self) -> bool {
        let mut state = self.state();
        let claim = |model: &ModelState| match model {
            // One reference is the list's own.
            ModelState::Loaded { instance, used } => Some((Arc::strong_count(instance) > 1, *used)),
            _ => None,
        };
        let loaded = state.models.iter().enumerate().filter_map(|(at, model)| Some((claim(model)?, at)));
        let least = loaded.min();
        let gone = least.map(|(_, at)| {
            tracing::info!(model = self.sources[at].name, "unloading: another model needs its memory");
            // Requests wait for a model that is being replaced.
            let next = if state.is_reloading { ModelState::Loading(Vec::new()) } else { ModelState::Empty };
            std::mem::replace(&mut state.models[at], next)
        });
        // Its memory may be freed later.
        drop(state);
        gone.is_some()
    }

    /// Unloads a model, or with `only` this instance of it. `false` if it was not loaded.
    pub fn unload(&self, at: usize, only: Option<&Arc<Instance>>) -> bool {
        let mut state = self.state();
        let is_loaded = matches!(
            &state.models[at],
            ModelState::Loaded { instance, .. } if only.is_none_or(|only| Arc::ptr_eq(only, instance))
        );
        let gone = is_loaded.then(|| std::mem::replace(&mut state.models[at], ModelState::Empty));
        drop(state);
        gone.is_some()
    }

    /// Begins to load the model at `at` once more, on `thread`, which calls [`end_reload`](Self::end_reload).
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn reload<E>(&self, at: usize, thread: impl FnOnce() -> Result<JoinHandle<()>, E>) -> Result<(), E> {
        self.state().is_reloading = true;
        let started = thread();
        let mut state = self.state();
        state.threads.retain(|(_, thread)| !thread.is_finished());
        match started {
            Ok(thread) => state.threads.push((at, thread)),
            Err(err) => {
                state.is_reloading = false;
                return Err(err);
            }
        }
        Ok(())
    }

    /// Ends the loading of a model once more. If it failed, the loaded one stays, unless it had to be
    /// unloaded: then waiting requests are told `why`, and the next request loads it.
    pub fn end_reload(&self, at: usize, why: Option<&str>) {
        let mut state = self.state();
        state.is_reloading = false;
        let is_gone = matches!(state.models[at], ModelState::Loading(_));
        drop(state);
        if let Some(why) = why.filter(|_| is_gone) {
            self.failed(at, why);
        }
    }

    /// Marks a model as loaded.
    pub fn loaded(&self, at: usize, instance: Arc<Instance>) {
        let mut state = self.state();
        state.alive.retain(|alive| alive.strong_count() > 0);
        state.alive.push(Arc::downgrade(&instance));
        let model = ModelState::Loaded { instance: Arc::clone(&instance), used: state.clock };
        let before = std::mem::replace(&mut state.models[at], model);
        drop(state);
        before.tell(|| Ok(Arc::clone(&instance)));
    }

    /// Marks a model as failed to load.
    pub fn failed(&self, at: usize, why: &str) {
        let before = std::mem::replace(&mut self.state().models[at], ModelState::Failed);
        before.tell(|| Err(why.to_owned()));
    }

    /// All instances in memory.
    pub fn alive(&self) -> Vec<Arc<Instance>> {
        self.state().alive.iter().filter_map(Weak::upgrade).collect()
    }

    /// Sum of the snapshots of all engines, and the number of requests waiting for a slot.
    pub fn snapshot(&self) -> (Snapshot, usize) {
        let mut all = self.budget.past();
        let mut waiting = 0;
        for instance in self.alive() {
            all.add(&instance.status.snapshot());
            waiting += instance.status.waiting();
        }
        (all, waiting)
    }

    /// Drops all models and waits for their threads, except those that are still loading, which cannot be
    /// interrupted.
    pub fn end(&self) {
        let mut state = self.state();
        let models = state.models.iter_mut().map(|model| std::mem::replace(model, ModelState::Empty));
        let models: Vec<ModelState> = models.collect();
        let threads = std::mem::take(&mut state.threads);
        let is_reloading = state.is_reloading;
        drop(state);
        let is_loading = |model: &ModelState| is_reloading || matches!(model, ModelState::Loading(_));
        let loads: Vec<bool> = models.iter().map(is_loading).collect();
        drop(models);
        for (at, thread) in threads {
            if !loads[at] || thread.is_finished() {
                // A panic has been reported already.
                let _ = thread.join();
            }
        }
    }
}

/// A model is larger than the limit for all models.
#[derive(Debug, thiserror::Error)]
#[error("the model needs {bytes} bytes; the limit for all models is {most}")]
struct OverBudget {
    bytes: u64,
    most: u64,
}

/// True if a model was not loaded because there is too little memory for it.
pub fn is_about_memory(err: &(dyn Error + Send + Sync + 'static)) -> bool {
    err.is::<OverBudget>()
        || err.downcast_ref().is_some_and(|err| matches!(err, sterna_engine::Error::DoesNotFit { .. }))
}

fn is_ending(life: &Life) -> Result<(), LoadError> {
    if life.phase() >= Phase::Ending { Err("the server is shutting down".into()) } else { Ok(()) }
}
