//! A conversation with a model: applies the chat template, and feeds only the new tokens.

use std::sync::Arc;

use super::decoder::StopReason;
use super::handle::Engine;
use super::options::GenerateOptions;
use super::session::Session;
use super::stats::Stats;
use super::vision::picture::{ImageError, ImageRows, PlacedImage};
use crate::error::Error;
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::{ChatTemplate, IMAGE, Message};

/// Most positions kept free for an answer when old turns are dropped.
const ANSWER_TOKENS: usize = 256;

/// A session and the turns that it has seen.
pub struct Conversation {
    session: Session,
    template: ChatTemplate,
    /// The system message, if any, then `user` and `assistant` messages in turn.
    messages: Vec<Message>,
    /// The images of each message, whose places are the [marks](IMAGE) in its content.
    images: Vec<Vec<Arc<ImageRows>>>,
    /// Text of the session's tokens and of `unfed` after them. Empty if it is not known exactly.
    seen: String,
    /// Tokens of the last answer that the session has not been fed yet.
    unfed: Vec<u32>,
}

/// The end of an answer, without its text.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Reason why it ended.
    pub reason: StopReason,
    /// Counters and times.
    pub stats: Stats,
    /// The seed of its sampling.
    pub seed: u64,
    /// Number of old messages dropped to make room.
    pub forgotten: usize,
}

/// Tokens to feed, with placeholders of images, and the images at their positions in the session.
struct Prompt {
    tokens: Vec<u32>,
    images: Vec<PlacedImage>,
}

/// The first position at which two lists of images differ.
fn first_difference(one: &[PlacedImage], other: &[PlacedImage]) -> usize {
    let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    [one.get(same), other.get(same)].into_iter().flatten().map(|image| image.at).min().unwrap_or(usize::MAX)
}

impl Conversation {
    /// An empty conversation, or one that begins with a system message.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Tokenizer`] if the file has no usable vocabulary.
    pub fn new(engine: &Engine, template: ChatTemplate, system: Option<&str>) -> Result<Self, Error> {
        engine.tokenizer()?;
        let messages: Vec<_> = system.map(|text| Message::new("system", text)).into_iter().collect();
        let (session, images) = (engine.session()?, vec![Vec::new(); messages.len()]);
        Ok(Self { session, template, messages, images, seen: String::new(), unfed: Vec::new() })
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Used positions of the context.
    pub fn used(&self) -> usize {
        self.session.position()
    }

    /// Drops all but the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(self.first_turn());
        self.images.truncate(self.messages.len());
        self.session.cut_back(0);
        self.forget_text();
    }

    /// Sends `text` to the model and passes the pieces of the answer to `each`. If the context is too small
    /// for the whole conversation, the oldest turns are dropped. After an error, or an empty answer, the
    /// conversation is as before the call.
    ///
    /// # Errors
    /// [`Error::Chat`] if the template fails; [`Error::ContextFull`] if even this turn alone does not fit; as
    /// [`Session::generate`]; and any error of `each`.
    pub fn answer<E: From<Error>>(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<Answer, E> {
        self.answer_about(text, Vec::new(), options, each)
    }

    /// As [`answer`](Self::answer), about images: their places in `text` are its [marks](IMAGE).
    ///
    /// # Errors
    /// As [`answer`](Self::answer); [`Error::Image`].
    pub fn answer_about<E: From<Error>>(
        &mut self,
        text: &str,
        images: Vec<Arc<ImageRows>>,
        options: &GenerateOptions,
        mut each: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<Answer, E> {
        self.messages.push(Message::new("user", text));
        self.images.push(images);
        let result = self.generate(options, &mut each);
        match &result {
            Ok((_, answer)) if !answer.is_empty() => {
                self.messages.push(Message::new("assistant", answer.as_str()));
                self.images.push(Vec::new());
            }
            _ => {
                self.messages.pop();
                self.images.pop();
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
        let (Prompt { tokens, images }, rendered, forgotten) = self.prompt(options)?;
        let fed_after_prompt = self.session.position() + tokens.len();
        let mut rest = tokens.as_slice();
        for image in &images {
            let (text, after) = rest.split_at(image.at - self.session.position());
            self.session.push(text)?;
            self.session.push_image(&image.rows)?;
            rest = &after[image.rows.len()..];
        }
        let mut generation = self.session.generate(rest, options)?;
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
            // The tokens continue where the text was cut.
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

    /// The prompt to feed, the text up to the answer, and the number of messages dropped for it.
    fn prompt(&mut self, options: &GenerateOptions) -> Result<(Prompt, String, usize), Error> {
        let n_ctx = self.session.engine().n_ctx();
        let answer = options.max_tokens.unwrap_or(usize::MAX).min(ANSWER_TOKENS).min(n_ctx / 4);
        let rendered = self.template.render(&self.messages, true)?;
        if let Some(new) = self.new_tokens(&rendered)?
            && self.session.position() + new.tokens.len() + answer <= n_ctx
        {
            return Ok((new, rendered, 0));
        }
        let (mut rendered, mut forgotten) = (rendered, 0);
        loop {
            let Prompt { tokens, mut images } = self.encode(&rendered, 0, true)?;
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            if tokens.len() + answer <= n_ctx {
                let common = self.session.tokens().iter().zip(&tokens).take_while(|(a, b)| a == b).count();
                let common = common.min(first_difference(self.session.images(), &images));
                self.session.cut_back(common.min(tokens.len() - 1));
                let fed = self.session.position();
                images.retain(|image| image.at >= fed);
                return Ok((Prompt { tokens: tokens[fed..].to_vec(), images }, rendered, forgotten));
            }
            let dropped = self.forget_oldest_turn();
            if dropped == 0 {
                return Err(Error::ContextFull { n_ctx, used: 0, more: tokens.len() + answer });
            }
            forgotten += dropped;
            rendered = self.template.render(&self.messages, true)?;
        }
    }

    /// Tokens of the text that follows the session's text, if `rendered` extends it. The first must be a
    /// special token: ordinary text might have merged with the last token of the session.
    fn new_tokens(&self, rendered: &str) -> Result<Option<Prompt>, Error> {
        let more = match rendered.strip_prefix(self.seen.as_str()) {
            Some(more) if !self.seen.is_empty() => more,
            _ => return Ok(None),
        };
        let tokenizer = self.session.engine().tokenizer()?;
        let Prompt { tokens, mut images } = self.encode(more, self.seen.matches(IMAGE).count(), false)?;
        let goes_on = tokens.first().is_some_and(|&id| tokenizer.is_special(id));
        let before = self.session.position() + self.unfed.len();
        images.iter_mut().for_each(|image| image.at += before);
        Ok(goes_on.then(|| Prompt { tokens: [self.unfed.as_slice(), &tokens].concat(), images }))
    }

    /// Tokens of a text, whose first image is number `first` of the conversation. `begins` is true for the
    /// start of a conversation.
    fn encode(&self, text: &str, first: usize, begins: bool) -> Result<Prompt, Error> {
        let engine = self.session.engine();
        let tokenizer = engine.tokenizer()?;
        let [before, after] = engine.vision().map(|vision| vision.around()).unwrap_or_default();
        let text = text.replace(IMAGE, &format!("{before}{IMAGE}{after}"));
        let mut rows = self.images.iter().flatten().skip(first);
        let (mut tokens, mut images) = (Vec::new(), Vec::new());
        for (at, part) in text.split(IMAGE).enumerate() {
            if at > 0 {
                let rows = rows.next().ok_or(ImageError::Template)?;
                images.push(PlacedImage::append(Arc::clone(rows), &mut tokens));
            }
            match begins && at == 0 {
                true => tokens.extend(self.template.encode(tokenizer, part)),
                false => tokens.extend(tokenizer.encode(part, Special::Parse, false)),
            }
        }
        match rows.next() {
            None => Ok(Prompt { tokens, images }),
            Some(_) => Err(ImageError::Template.into()),
        }
    }

    /// Drops the oldest message after the system message and its answers, but never the last message.
    fn forget_oldest_turn(&mut self) -> usize {
        let first = self.first_turn();
        let later = self.messages.iter().skip(first + 1);
        let n = 1 + later.take_while(|message| message.role != "user").count();
        if first + n >= self.messages.len() {
            return 0;
        }
        self.messages.drain(first..first + n);
        self.images.drain(first..first + n);
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
