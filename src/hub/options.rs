//! Options for the hub: endpoint, token and cache.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::HubError;

/// Options for downloads from the hub.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// URL of the hub, without a trailing slash.
    pub endpoint: String,
    /// Folder of the cache, with a `models--USER--NAME` for each repository.
    pub cache: PathBuf,
    /// Access token.
    pub token: Option<Token>,
    /// Use no network: a model that is not in the cache is an error.
    pub offline: bool,
    /// Number of tries of a request whose failure may be temporary; each byte that arrives resets the count.
    pub tries: u32,
    /// Pause before the second try. Each further pause is twice as long, up to 16 times.
    pub pause: Duration,
    /// Longest time that a connection may be silent.
    pub silence: Duration,
    /// PEM file with the trusted certificates, instead of Mozilla's.
    pub certificates: Option<PathBuf>,
}

/// A secret, hidden by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates a token from text, without surrounding white space.
    ///
    /// # Errors
    /// [`HubError::Options`] if it is not valid in a header.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let text = text.trim();
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.to_owned())),
            false => Err(HubError::Options("a token consists of visible ASCII characters".to_owned())),
        }
    }

    /// Value of the `Authorization` header.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The text with the token replaced, if it contains it.
    pub(super) fn hide(&self, text: &str) -> String {
        text.replace(&self.0, "(token)")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl HubOptions {
    /// Options for huggingface.co with a cache in `cache`.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            endpoint: "https://huggingface.co".to_owned(),
            cache,
            token: None,
            offline: false,
            tries: 5,
            pause: Duration::from_secs(1),
            silence: Duration::from_secs(30),
            certificates: None,
        }
    }

    /// Reads the environment variables of huggingface_hub: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`,
    /// `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DISABLE_IMPLICIT_TOKEN`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT` (seconds), `SSL_CERT_FILE` and `REQUESTS_CA_BUNDLE`.
    ///
    /// # Errors
    /// [`HubError::Options`] for an invalid value, or if no variable gives a folder for the cache.
    pub fn from_env(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &str| get(name).map(|value| value.to_string_lossy().into_owned());
        let is_on = |name: &str| {
            text(name).is_some_and(|on| ["1", "on", "yes", "true"].contains(&&*on.to_lowercase()))
        };
        let user = get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
        let folder = |name: &str| {
            let path = PathBuf::from(get(name)?);
            match (path.strip_prefix("~"), &user) {
                (Ok(rest), Some(user)) => Some(user.join(rest)),
                _ => Some(path),
            }
        };
        let xdg = || folder("XDG_CACHE_HOME").or_else(|| Some(user.clone()?.join(".cache")));
        let home = folder("HF_HOME").or_else(|| Some(xdg()?.join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let cache = cache.or_else(|| Some(home.clone()?.join("hub")));
        let cache = cache.ok_or_else(|| {
            HubError::Options("no folder for the cache was found; set HF_HUB_CACHE".to_owned())
        })?;
        let mut options = Self::new(cache);
        if let Some(endpoint) = text("HF_ENDPOINT") {
            options.endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        options.offline = is_on("HF_HUB_OFFLINE");
        if let Some(seconds) = text("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds = seconds.parse::<u64>().ok().filter(|seconds| (1..=3600).contains(seconds));
            let wrong = || HubError::Options("HF_HUB_DOWNLOAD_TIMEOUT: want 1 to 3600 seconds".to_owned());
            options.silence = Duration::from_secs(seconds.ok_or_else(wrong)?);
        }
        options.certificates = folder("SSL_CERT_FILE").or_else(|| folder("REQUESTS_CA_BUNDLE"));
        if !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            let file = folder("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
            let said = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
            let kept = || std::fs::read_to_string(file?).ok().filter(|text| !text.trim().is_empty());
            options.token = said.or_else(kept).map(|text| Token::new(&text)).transpose()?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn options(set: &[(&str, &str)]) -> Result<HubOptions, HubError> {
        HubOptions::from_env(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        for (set, cache) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/h")], "/u/h/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/x")], "/x"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/y"), ("HUGGINGFACE_HUB_CACHE", "/x")], "/y"),
        ] {
            assert_eq!(options(set).unwrap().cache, Path::new(cache), "{set:?}");
        }
        assert!(options(&[]).is_err());
    }

    #[test]
    fn tokens_come_from_the_variable_or_the_file_and_show_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "hf_kept\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let token = |set: &[(&str, &str)]| options(&[&[("HF_HOME", home)], set].concat()).unwrap().token;
        assert_eq!(token(&[]), Some(Token::new("hf_kept").unwrap()));
        assert_eq!(token(&[("HF_TOKEN", " hf_said ")]), Some(Token::new("hf_said").unwrap()));
        assert_eq!(token(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(format!("{:?}", token(&[])), "Some(Token(..))");
        assert!(Token::new("a b").is_err() && Token::new("a\nb").is_err() && Token::new("").is_err());
    }

    #[test]
    fn switches_and_numbers() {
        let set = [("HOME", "/u"), ("HF_HUB_OFFLINE", "yes"), ("HF_ENDPOINT", "http://localhost:1/")];
        let options_set = options(&set).unwrap();
        assert!(options_set.offline);
        assert_eq!(options_set.endpoint, "http://localhost:1");
        assert!(!options(&[("HOME", "/u"), ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        assert!(options(&[("HOME", "/u"), ("HF_HUB_DOWNLOAD_TIMEOUT", "x")]).is_err());
    }
}
