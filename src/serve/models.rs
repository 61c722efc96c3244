//! The models that a server may be asked for, and which of them are loaded.
//!
//! A model is loaded when the first request asks for it, on a thread of its own, one model after the other;
//! requests of the loaded ones go on meanwhile. If there is no room, the model that nobody has asked for the
//! longest gives way, one without requests before one with some: no further request is handed to it, those
//! that it has end as if nothing had happened, and then its memory is free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::board::{Life, Phase, Standing};
use super::error::ApiError;
use super::instance::{Instance, Room, Rooms};
use super::model::{LoadError, ModelSource};

/// What is said of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nobody has asked for it, or it gave way.
    Unloaded,
    /// It is being loaded.
    Loading,
    /// It answers.
    Loaded,
    /// It could not be loaded; the next request tries again.
    Failed,
}

impl Status {
    /// As llama-server names it; what failed is unloaded there.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unloaded | Self::Failed => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
        }
    }
}

/// What a request that waits for a model is told. The model is in it, so that it cannot give way before its
/// requests have come to it.
type Arrival = Result<Arc<Instance>, String>;

/// Where a model stands.
enum Seat {
    Empty,
    /// Who waits for it.
    Loading(Vec<oneshot::Sender<Arrival>>),
    Loaded {
        instance: Arc<Instance>,
        /// When it was asked for, on a clock of requests.
        used: u64,
    },
    Failed,
}

impl Seat {
    /// Tells those who wait what became of it.
    fn tell(self, arrival: impl Fn() -> Arrival) {
        if let Self::Loading(waiting) = self {
            // Some of them may have left.
            waiting.into_iter().for_each(|sender| drop(sender.send(arrival())));
        }
    }
}

struct State {
    /// Of each source.
    seats: Vec<Seat>,
    /// Requests so far.
    clock: u64,
    /// All that may live: those of the seats, and those that gave way and have requests to end.
    alive: Vec<Weak<Instance>>,
    threads: Vec<(usize, JoinHandle<()>)>,
}

/// All models of a server.
pub struct Models {
    sources: Vec<ModelSource>,
    /// Whether a request must name one of them. A single model is meant by every name.
    pub by_name: bool,
    /// Room for those that are loaded.
    pub rooms: Arc<Rooms>,
    state: Mutex<State>,
    /// Held by the thread that loads.
    turn: Mutex<()>,
}

/// What a request finds.
enum Found {
    Instance(Arc<Instance>),
    Loading(oneshot::Receiver<Arrival>),
    /// It is for the caller to load it.
    Begun(oneshot::Receiver<Arrival>),
}

impl Models {
    /// Of `sources`, at least one; the first is meant by requests that name none.
    pub fn new(sources: Vec<ModelSource>, by_name: bool, rooms: Arc<Rooms>) -> Self {
        let seats = sources.iter().map(|_| Seat::Empty).collect();
        let state = State { seats, clock: 0, alive: Vec::new(), threads: Vec::new() };
        Self { sources, by_name, rooms, state: Mutex::new(state), turn: Mutex::new(()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sources, with what is said of each and its instance.
    pub fn list(&self) -> Vec<(&ModelSource, Status, Option<Arc<Instance>>)> {
        let state = self.state();
        let of = |(source, seat)| match seat {
            &Seat::Empty => (source, Status::Unloaded, None),
            Seat::Loading(_) => (source, Status::Loading, None),
            Seat::Loaded { instance, .. } => (source, Status::Loaded, Some(Arc::clone(instance))),
            Seat::Failed => (source, Status::Failed, None),
        };
        self.sources.iter().zip(&state.seats).map(of).collect()
    }

    /// Which model a request means. Ollama's clients write `NAME:latest`.
    ///
    /// # Errors
    /// 404 for one that is not here.
    pub fn find(&self, name: Option<&str>) -> Result<usize, ApiError> {
        let Some(name) = name.filter(|_| self.by_name) else { return Ok(0) };
        let at = |name: &str| self.sources.iter().position(|source| source.name == name);
        let found = at(name).or_else(|| at(name.strip_suffix(":latest")?));
        found.ok_or_else(|| ApiError::unknown_model(name))
    }

    /// The source of a model.
    pub fn source(&self, at: usize) -> &ModelSource {
        &self.sources[at]
    }

    /// The model. `load` starts a thread that loads it if none does; a request that names its model waits.
    ///
    /// # Errors
    /// Why it could not be loaded; 503 while the only model is being loaded.
    pub async fn get(
        &self,
        at: usize,
        load: impl FnOnce() -> Result<JoinHandle<()>, ApiError>,
    ) -> Result<Arc<Instance>, ApiError> {
        let arrival = match self.look(at) {
            Found::Instance(instance) => return Ok(instance),
            Found::Loading(_) if !self.by_name => return Err(ApiError::unavailable("Loading model")),
            Found::Loading(arrival) => arrival,
            Found::Begun(arrival) => {
                match load() {
                    Ok(thread) => self.state().threads.push((at, thread)),
                    Err(err) => {
                        self.failed(at, &err.message);
                        return Err(err);
                    }
                }
                arrival
            }
        };
        match arrival.await {
            Ok(Ok(instance)) => Ok(instance),
            Ok(Err(why)) => Err(ApiError::ours(why)),
            Err(_) => Err(ApiError::unavailable("the server is shutting down")),
        }
    }

    /// Begins to load the first model with `load`, before anybody asks for it.
    ///
    /// # Errors
    /// What `load` says.
    pub fn first<E>(&self, load: impl FnOnce() -> Result<JoinHandle<()>, E>) -> Result<(), E> {
        if let Found::Begun(_) = self.look(0) {
            let thread = load()?;
            self.state().threads.push((0, thread));
        }
        Ok(())
    }

    fn look(&self, at: usize) -> Found {
        let mut state = self.state();
        state.clock += 1;
        let now = state.clock;
        let (sender, arrival) = oneshot::channel();
        match &mut state.seats[at] {
            Seat::Loaded { instance, used } => {
                *used = now;
                return Found::Instance(Arc::clone(instance));
            }
            Seat::Loading(waiting) => {
                waiting.push(sender);
                return Found::Loading(arrival);
            }
            Seat::Empty | Seat::Failed => {}
        }
        state.seats[at] = Seat::Loading(vec![sender]);
        state.threads.retain(|(_, thread)| !thread.is_finished());
        Found::Begun(arrival)
    }

    /// Loads a model with `load`, once it is its turn and there is room. Of a model that does not fit beside
    /// the others although the limits allow it, the machine has said so: then they give way, too.
    ///
    /// # Errors
    /// Why it could not be loaded.
    pub fn load<T>(
        &self,
        at: usize,
        life: &Life,
        load: impl Fn(super::model::Loaded) -> Result<T, LoadError>,
    ) -> Result<(T, Arc<Room>), LoadError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let opened = (self.sources[at].open)()?;
            let room = self.room(opened.bytes, life)?;
            let err = match (opened.load)().and_then(&load) {
                Ok(loaded) => return Ok((loaded, room)),
                Err(err) => err,
            };
            let is_short =
                err.downcast_ref().is_some_and(|err| matches!(err, sterna_engine::Error::DoesNotFit { .. }));
            drop(room);
            let (models, returns) = self.rooms.count();
            if !is_short || models == 0 {
                return Err(err);
            }
            let mut gave_way = self.give_way();
            while !self.rooms.wait(returns) {
                is_ending(life)?;
                gave_way = gave_way || self.give_way();
            }
        }
    }

    /// Room for `bytes`: as many models give way as it takes, one after the other.
    fn room(&self, bytes: u64, life: &Life) -> Result<Arc<Room>, LoadError> {
        // A model that was loaded just now may not have its seat yet, and cannot give way before.
        let mut asked = None;
        loop {
            let returns = match self.rooms.take(bytes) {
                Ok(room) => return Ok(room),
                Err(Some(returns)) => returns,
                Err(None) => {
                    let most = self.rooms.most_bytes;
                    return Err(format!("the model takes {bytes} bytes, and models may take {most}").into());
                }
            };
            if asked != Some(returns) && self.give_way() {
                asked = Some(returns);
            }
            self.rooms.wait(returns);
            is_ending(life)?;
        }
    }

    /// Takes the seat of the model that can best be done without. `false` if none has one.
    fn give_way(&self) -> bool {
        let mut state = self.state();
        let claim = |seat: &Seat| match seat {
            // The seat itself holds it once.
            Seat::Loaded { instance, used } => Some((Arc::strong_count(instance) > 1, *used)),
            _ => None,
        };
        let loaded = state.seats.iter().enumerate().filter_map(|(at, seat)| Some((claim(seat)?, at)));
        let least = loaded.min();
        let gone = least.map(|(_, at)| {
            tracing::info!(model = self.sources[at].name, "unloading: another model wants its room");
            std::mem::replace(&mut state.seats[at], Seat::Empty)
        });
        // Its memory may take a while to be freed.
        drop(state);
        gone.is_some()
    }

    /// Unloads a model. `false` if it was not loaded.
    pub fn unload(&self, at: usize) -> bool {
        let mut state = self.state();
        let is_loaded = matches!(state.seats[at], Seat::Loaded { .. });
        let gone = is_loaded.then(|| std::mem::replace(&mut state.seats[at], Seat::Empty));
        drop(state);
        gone.is_some()
    }

    /// A model has been loaded.
    pub fn arrived(&self, at: usize, instance: Arc<Instance>) {
        let mut state = self.state();
        state.alive.retain(|alive| alive.strong_count() > 0);
        state.alive.push(Arc::downgrade(&instance));
        let seat = Seat::Loaded { instance: Arc::clone(&instance), used: state.clock };
        let before = std::mem::replace(&mut state.seats[at], seat);
        drop(state);
        before.tell(|| Ok(Arc::clone(&instance)));
    }

    /// A model could not be loaded.
    pub fn failed(&self, at: usize, why: &str) {
        let before = std::mem::replace(&mut self.state().seats[at], Seat::Failed);
        before.tell(|| Err(why.to_owned()));
    }

    /// All that live.
    pub fn alive(&self) -> Vec<Arc<Instance>> {
        self.state().alive.iter().filter_map(Weak::upgrade).collect()
    }

    /// What all engines hold, and have done, and how many requests wait for a slot of one.
    pub fn standing(&self) -> (Standing, usize) {
        let mut all = self.rooms.past();
        let mut waiting = 0;
        for instance in self.alive() {
            all.add(&instance.board.standing());
            waiting += instance.board.waiting();
        }
        (all, waiting)
    }

    /// Lets go of all models, and waits for their threads, but for those that still load: that cannot be
    /// interrupted.
    pub fn end(&self) {
        let mut state = self.state();
        let seats = state.seats.iter_mut().map(|seat| std::mem::replace(seat, Seat::Empty));
        let seats: Vec<Seat> = seats.collect();
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        let loads: Vec<bool> = seats.iter().map(|seat| matches!(seat, Seat::Loading(_))).collect();
        drop(seats);
        for (at, thread) in threads {
            if !loads[at] || thread.is_finished() {
                // What it had to say of a panic, it has said.
                let _ = thread.join();
            }
        }
    }
}

fn is_ending(life: &Life) -> Result<(), LoadError> {
    if life.phase() >= Phase::Ending { Err("the server is shutting down".into()) } else { Ok(()) }
}
