//! A conversation with a model: turns put into its template, and only what is new fed to it.

use super::{Engine, GenerateOptions, Session, Stats, StopReason};
use crate::Error;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{ChatTemplate, Message};

/// Most positions that are kept free for an answer when old turns are forgotten.
const ANSWER_TOKENS: usize = 256;

/// A session and the turns that it has seen.
pub struct Conversation {
    session: Session,
    template: ChatTemplate,
    /// The system message, if any, and then messages of `user` and `assistant` alternately.
    messages: Vec<Message>,
    /// Text that the session has seen, and `unfed` behind it. Empty if that is not known exactly.
    seen: String,
    /// Tokens of the last answer that the session has not seen yet.
    unfed: Vec<u32>,
}

/// End of an answer, beside its text.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Reason of its end.
    pub reason: StopReason,
    /// Counts and times.
    pub stats: Stats,
    /// The seed of its sampling.
    pub seed: u64,
    /// Old messages that had to be forgotten to make room.
    pub forgotten: usize,
}

impl Conversation {
    /// An empty conversation, or one that begins with a system message.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Tokenizer`] if the file has no usable vocabulary.
    pub fn new(engine: &Engine, template: ChatTemplate, system: Option<&str>) -> Result<Self, Error> {
        engine.tokenizer()?;
        let messages = system.map(|text| Message::new("system", text)).into_iter().collect();
        let session = engine.session()?;
        Ok(Self { session, template, messages, seen: String::new(), unfed: Vec::new() })
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Positions of the context that are used.
    pub fn used(&self) -> usize {
        self.session.position()
    }

    /// Forgets all but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.first_turn());
        self.session.cut_back(0);
        self.forget_text();
    }

    /// Says `text` to the model and hands the pieces of its answer to `each`. If the context is too small
    /// for the whole conversation, the oldest turns are forgotten. After an error, or an answer of nothing,
    /// the conversation is as if nothing had been said.
    ///
    /// # Errors
    /// [`Error::Chat`] if the template refuses; [`Error::ContextFull`] if even this turn alone does not
    /// fit; as [`Session::generate`]; and whatever `each` returns.
    pub fn answer<E: From<Error>>(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<Answer, E> {
        self.messages.push(Message::new("user", text));
        let result = self.generate(options, &mut each);
        match &result {
            Ok((_, answer)) if !answer.is_empty() => {
                self.messages.push(Message::new("assistant", answer.as_str()));
            }
            _ => {
                self.messages.pop();
                self.forget_text();
            }
        }
        result.map(|(answer, _)| answer)
    }

    fn generate<E: From<Error>>(
        &mut self,
        options: &GenerateOptions,
        each: &mut impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(Answer, String), E> {
        let (prompt, rendered, forgotten) = self.prompt(options)?;
        let fed_after_prompt = self.session.position() + prompt.len();
        let mut generation = self.session.generate(&prompt, options)?;
        let mut answer = String::new();
        for piece in &mut generation {
            let piece = piece?;
            answer += &piece;
            each(&piece)?;
        }
        let reason = generation.stop_reason().unwrap_or(StopReason::Limit);
        let (stats, seed) = (generation.stats(), generation.seed());
        let mut picked = generation.tokens().to_vec();
        drop(generation);
        let exact = match reason {
            // The template writes the end of a turn itself. A grammar may end a text without a token for it.
            StopReason::EndOfText => {
                let tokenizer = self.session.engine().tokenizer()?;
                picked.pop_if(|token| tokenizer.is_eog(*token));
                true
            }
            StopReason::Limit
            | StopReason::Cancelled
            | StopReason::ContextFull
            | StopReason::Constraint
            | StopReason::BrokenLogits => true,
            // The tokens go on where the text was cut.
            StopReason::StopString => false,
        };
        match self.session.position().checked_sub(fed_after_prompt) {
            Some(n_fed) if exact && n_fed <= picked.len() => {
                self.unfed = picked.split_off(n_fed);
                self.seen = rendered + &answer;
            }
            _ => self.forget_text(),
        }
        Ok((Answer { reason, stats, seed, forgotten }, answer))
    }

    /// The tokens to feed, the text up to the answer, and how many messages were forgotten for it.
    fn prompt(&mut self, options: &GenerateOptions) -> Result<(Vec<u32>, String, usize), Error> {
        let n_ctx = self.session.engine().n_ctx();
        let answer = options.max_tokens.unwrap_or(usize::MAX).min(ANSWER_TOKENS).min(n_ctx / 4);
        let rendered = self.template.render(&self.messages, true)?;
        if let Some(new) = self.new_tokens(&rendered)?
            && self.session.position() + new.len() + answer <= n_ctx
        {
            return Ok((new, rendered, 0));
        }
        let (mut rendered, mut forgotten) = (rendered, 0);
        loop {
            let tokens = self.template.encode(self.session.engine().tokenizer()?, &rendered);
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            if tokens.len() + answer <= n_ctx {
                let common = self.session.tokens().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
                let common = common.min(tokens.len() - 1);
                self.session.cut_back(common);
                return Ok((tokens[common..].to_vec(), rendered, forgotten));
            }
            let dropped = self.forget_oldest_turn();
            if dropped == 0 {
                return Err(Error::ContextFull { n_ctx, used: 0, more: tokens.len() + answer });
            }
            forgotten += dropped;
            rendered = self.template.render(&self.messages, true)?;
        }
    }

    /// Text that follows the tokens of the session, if the text only goes on. A special token must come
    /// first: text might have become one token with what is there.
    fn new_tokens(&self, rendered: &str) -> Result<Option<Vec<u32>>, Error> {
        let more = match rendered.strip_prefix(self.seen.as_str()) {
            Some(more) if !self.seen.is_empty() => more,
            _ => return Ok(None),
        };
        let tokenizer = self.session.engine().tokenizer()?;
        let tokens = tokenizer.encode(more, Special::Parse, false);
        let goes_on = tokens.first().is_some_and(|&id| tokenizer.is_special(id));
        Ok(goes_on.then(|| [self.unfed.as_slice(), &tokens].concat()))
    }

    /// Drops the oldest message after the system message and what answers it, but never the last message.
    fn forget_oldest_turn(&mut self) -> usize {
        let first = self.first_turn();
        let later = self.messages.iter().skip(first + 1);
        let n = 1 + later.take_while(|message| message.role != "user").count();
        if first + n >= self.messages.len() {
            return 0;
        }
        self.messages.drain(first..first + n);
        n
    }

    fn first_turn(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| message.role == "system"))
    }

    fn forget_text(&mut self) {
        self.seen.clear();
        self.unfed.clear();
    }
}
