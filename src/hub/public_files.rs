//! Files at URLs that a client of a server chooses: only from allowed hosts, only from
//! public addresses, and within limits.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::http::{join, origin};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 3;

/// A reader of such files. No proxy is used, because it would resolve names itself.
#[derive(Debug)]
pub struct PublicFiles {
    agent: Agent,
    hosts: Vec<String>,
    max_bytes: u64,
    time: Duration,
}

impl PublicFiles {
    /// A reader of files of at most `max_bytes` from `hosts`, within `time` for each file. An entry of
    /// `hosts` is a name, `.NAME` for all names below a name, or `*`.
    pub fn new(hosts: Vec<String>, max_bytes: u64, time: Duration) -> Self {
        Self::with(PublicOnly::default(), hosts, max_bytes, time)
    }

    fn with(resolver: impl Resolver, hosts: Vec<String>, max_bytes: u64, time: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .accept_encoding("identity")
            .user_agent(concat!("sterna/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
        Self { agent, hosts, max_bytes, time }
    }

    /// Reads the file at an http or https URL.
    ///
    /// # Errors
    /// The reason: another host, an address that is not public, a status other than 200, a file that is too
    /// large, too little time.
    pub fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let until = Instant::now() + self.time;
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let host = self.host(&url)?;
            let left = until.saturating_duration_since(Instant::now());
            let request = self.agent.get(&url).config().timeout_global(Some(left)).build();
            let response = request.call().map_err(|err| format!("{host}: {err}"))?;
            let status = response.status().as_u16();
            if [301, 302, 303, 307, 308].contains(&status) {
                let to = response.headers().get("location").and_then(|to| to.to_str().ok());
                let to = to.and_then(|to| join(&url, to));
                let to = to.ok_or_else(|| format!("{host}: a redirect to nowhere"))?;
                if url.starts_with("https:") && !to.starts_with("https:") {
                    return Err(format!("{host}: a redirect from https to http, which is not followed"));
                }
                url = to;
                continue;
            }
            if status != 200 {
                return Err(format!("{host}: status {status}"));
            }
            let mut bytes = Vec::new();
            let mut body = response.into_body();
            let read = body.as_reader().take(self.max_bytes + 1).read_to_end(&mut bytes);
            read.map_err(|err| format!("{host}: {err}"))?;
            return match bytes.len() as u64 > self.max_bytes {
                true => Err(format!("{host}: a file of more than {} bytes", self.max_bytes)),
                false => Ok(bytes),
            };
        }
        Err(format!("more than {MAX_REDIRECTS} redirects"))
    }

    /// The host of a URL, if it is allowed.
    fn host(&self, url: &str) -> Result<String, String> {
        let Some(origin) = origin(url) else { return Err("not an http or https URL".to_owned()) };
        let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
        let name = match authority.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => authority,
        };
        match self.hosts.iter().any(|entry| includes(entry, name)) {
            true => Ok(name.to_owned()),
            false => Err(format!("{name} is not one of the allowed hosts")),
        }
    }
}

/// True if an entry of the allowed hosts includes a name.
fn includes(entry: &str, name: &str) -> bool {
    let entry = entry.to_ascii_lowercase();
    match entry.strip_prefix('.') {
        Some(end) => name.strip_suffix(end).is_some_and(|start| start.len() > 1 && start.ends_with('.')),
        None => entry == "*" || entry == name,
    }
}

/// Resolves names to public addresses. A name with any other address is refused.
#[derive(Debug, Default)]
struct PublicOnly(DefaultResolver);

impl Resolver for PublicOnly {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        match found.iter().find(|address| !is_public(address.ip())) {
            None => Ok(found),
            Some(_) => Err(io::Error::other("its address is not a public one").into()),
        }
    }
}

/// True for an address that is reached through the internet: not of this machine, of a private network, or of
/// a use of its own (RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        || a >= 224
        || a == 100 && (64..128).contains(&b)
        || [a, b, c] == [192, 0, 0]
        || [a, b, c] == [192, 88, 99]
        || a == 198 && (18..20).contains(&b);
    !is_special
}

/// True for a unicast address, without those that contain an IPv4 address or an organisation's own.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_special = a == 0x2002 || a == 0x2001 && (b < 0x200 || b == 0xdb8) || a == 0x3fff && b < 0x1000;
    a & 0xe000 == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_of_this_machine_and_its_networks_are_not_public() {
        for public in ["1.1.1.1", "93.184.216.34", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for other in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(!is_public(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn only_allowed_hosts_are_asked() {
        let files = |hosts: &[&str]| {
            PublicFiles::new(hosts.iter().map(|&host| host.to_owned()).collect(), 10, Duration::from_secs(5))
        };
        for (hosts, url, is_allowed) in [
            (&["a.co"][..], "https://A.co/x", true),
            (&["a.co"], "https://a.co:444/x", true),
            (&["a.co"], "https://b.a.co/x", false),
            (&[".a.co"], "https://b.a.co/x", true),
            (&[".a.co"], "https://a.co/x", false),
            (&[".a.co"], "https://evila.co/x", false),
            (&["a.co"], "https://a.co@evil/x", false),
            (&["*"], "https://x.y/z", true),
            (&["*"], "file:///etc/passwd", false),
            (&[], "https://a.co/x", false),
        ] {
            assert_eq!(files(hosts).host(url).is_ok(), is_allowed, "{hosts:?} {url}");
        }
        // Allowed as a name, and refused by its address before anything is connected.
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        there.set_nonblocking(true).unwrap();
        let port = there.local_addr().unwrap().port();
        for name in ["127.0.0.1", "localhost"] {
            let why = files(&["*"]).get(&format!("http://{name}:{port}/a.png")).unwrap_err();
            assert!(why.contains("not a public one"), "{why}");
        }
        assert_eq!(there.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    /// Answers each request with the next of `answers`, then ends.
    fn answering(answers: Vec<String>) -> String {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", there.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = there.accept().unwrap();
                let mut head = [0; 4096];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        url
    }

    #[test]
    fn redirects_and_sizes_are_limited() {
        let get = |answers: Vec<String>| {
            let url = answering(answers);
            let hosts = vec!["127.0.0.1".to_owned()];
            PublicFiles::with(DefaultResolver::default(), hosts, 10, Duration::from_secs(10)).get(&url)
        };
        let whole = |body: &str| {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
        };
        let to = |url: &str| {
            format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        };
        assert_eq!(get(vec![whole("0123456789")]).unwrap(), b"0123456789");
        assert!(get(vec![whole("0123456789a")]).unwrap_err().contains("more than 10 bytes"));
        assert_eq!(get(vec![to("/b"), whole("b")]).unwrap(), b"b");
        assert!(get(vec![to("http://other.host/b")]).unwrap_err().contains("allowed hosts"));
        assert!(get((0..5).map(|_| to("/b")).collect()).unwrap_err().contains("redirects"));
        assert!(
            get(vec!["HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".into()]).unwrap_err().contains("404")
        );
    }
}
