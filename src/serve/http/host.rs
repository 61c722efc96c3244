//! Host names that requests may use for this server.
//!
//! A web page can point its own domain at this machine (DNS rebinding). The browser then takes the server for
//! a part of that page, but `Host` still contains the page's domain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ends of names that no page can own: they are reserved (RFC 6761, RFC 6762, ICANN's `internal`). Containers
/// reach their host as `host.docker.internal` or `host.containers.internal`.
const RESERVED: [&str; 3] = ["internal", "local", "localhost"];
/// Further ends of names that only private resolvers know: services of Kubernetes, home networks (RFC 8375).
const PRIVATE: [&str; 2] = ["home.arpa", "svc"];

/// Names that are accepted besides IP addresses, the machine's own name and [`RESERVED`] ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Listed,
    /// Names without a dot, such as those of services in Docker Compose, and [`PRIVATE`] ones.
    Private,
    All,
}

/// Host names that a server accepts.
#[derive(Clone, Debug)]
pub struct HostNames {
    listed: Vec<String>,
    /// The machine's own name.
    own: String,
    others: Others,
}

impl HostNames {
    /// Names for a server with the operator's list `listed`. Without a list, a server that other machines
    /// reach also accepts names that no page can own, and all names if it has keys, which no page knows.
    pub fn new(listed: &[String], on_loopback: bool, has_keys: bool) -> Self {
        let others = match (on_loopback || !listed.is_empty(), has_keys) {
            (true, _) => Others::Listed,
            (false, false) => Others::Private,
            (false, true) => Others::All,
        };
        let own = gethostname::gethostname().to_string_lossy().into_owned();
        Self { listed: listed.to_vec(), own, others }
    }

    /// True if requests may have this `Host`.
    pub fn accept(&self, host: &str) -> bool {
        match Host::parse(host) {
            None => false,
            Some(Host::Address) => true,
            Some(Host::Name(name)) => self.accept_name(name),
        }
    }

    fn accept_name(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case("localhost")
            || name.eq_ignore_ascii_case(self.own.trim_end_matches('.'))
            || RESERVED.iter().any(|end| is_below(name, end))
            || self.listed.iter().any(|entry| matches(entry, name))
            || match self.others {
                Others::Listed => false,
                Others::Private => !name.contains('.') || PRIVATE.iter().any(|end| is_below(name, end)),
                Others::All => true,
            }
    }
}

/// True for a valid entry of the operator's list: a host name or an address, with or without a port, `.NAME`
/// for all names below a name, or `*` for all names.
pub fn is_entry(entry: &str) -> bool {
    let is_address = entry.parse::<IpAddr>().is_ok();
    is_address || entry == "*" || Host::parse(entry.strip_prefix('.').unwrap_or(entry)).is_some()
}

/// True if an entry of the operator's list includes a name.
fn matches(entry: &str, name: &str) -> bool {
    match entry.strip_prefix('.') {
        Some(end) => is_below(name, end),
        None if entry == "*" => true,
        None => matches!(Host::parse(entry), Some(Host::Name(own)) if own.eq_ignore_ascii_case(name)),
    }
}

/// True if `name` has more labels in front of `end`.
fn is_below(name: &str, end: &str) -> bool {
    let start = name.len().checked_sub(end.len()).and_then(|at| name.split_at_checked(at));
    start.is_some_and(|(start, rest)| start.ends_with('.') && rest.eq_ignore_ascii_case(end))
}

/// The value of `Host` without its port.
#[derive(Debug, PartialEq, Eq)]
enum Host<'h> {
    Address,
    /// A name without a dot at its end.
    Name(&'h str),
}

impl<'h> Host<'h> {
    /// `None` if any part is malformed, also the port.
    fn parse(host: &'h str) -> Option<Self> {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<Ipv6Addr>().ok()?;
                (None, port)
            }
            None => {
                let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
                (Some(name), port)
            }
        };
        let is_port =
            |port: &str| port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok();
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        let Some(name) = name.filter(|name| name.parse::<Ipv4Addr>().is_err()) else {
            return Some(Self::Address);
        };
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        name.split('.').all(is_label).then_some(Self::Name(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of a machine called `box`.
    fn names(listed: &[&str], on_loopback: bool, has_keys: bool) -> HostNames {
        let listed: Vec<String> = listed.iter().map(|&name| name.to_owned()).collect();
        assert!(listed.iter().all(|entry| is_entry(entry)), "{listed:?}");
        HostNames { own: "box".into(), ..HostNames::new(&listed, on_loopback, has_keys) }
    }

    fn assert_accepted(names: &HostNames, hosts: &[&str], are: bool) {
        for host in hosts {
            assert_eq!(names.accept(host), are, "{host}: {names:?}");
        }
    }

    const LOCAL: [&str; 14] = [
        "localhost",
        "LocalHost:8080",
        "localhost.",
        "llm.localhost:8080",
        "127.0.0.1:1",
        "127.9.9.9",
        "192.168.1.2:8080",
        "[::1]:8080",
        "[::1]",
        "[fe80::1]:65535",
        "host.docker.internal:8080",
        "HOST.containers.INTERNAL",
        "pi.local",
        "box:8080",
    ];
    const OF_PAGES: [&str; 12] = [
        "evil.example",
        "evil.example:8080",
        "evil.example.",
        "127.0.0.1.evil.example",
        "127.0.0.256.evil",
        "localhost.evil",
        "host.docker.internal.evil.example",
        "evilinternal.com",
        "evil-local.example",
        "xn--evil.example",
        "svc.evil.example",
        "home-arpa.example",
    ];
    const MALFORMED: [&str; 22] = [
        "",
        ":8080",
        ".",
        ".localhost",
        "a..local",
        "?",
        "[::1].evil.example",
        "[::1]evil.example:8080",
        "[::1]:",
        "[::1]:evil",
        "[::1",
        "[localhost]",
        "[127.0.0.1]",
        "::1",
        "localhost:evil",
        "localhost:",
        "localhost:80:80",
        "localhost:+80",
        "localhost:65536",
        "localhost, evil.example",
        "evil@localhost",
        "evil.example/.local",
    ];

    #[test]
    fn loopback_accepts_local_and_listed_names() {
        for has_keys in [false, true] {
            let names = names(&["box.lan:80", ".lab.example", "::1"], true, has_keys);
            assert_accepted(&names, &LOCAL, true);
            assert_accepted(&names, &["box.lan:3", "BOX.lan.", "a.lab.example", "a.b.lab.example"], true);
            assert_accepted(&names, &OF_PAGES, false);
            assert_accepted(&names, &MALFORMED, false);
            let others = ["llm", "evillocalhost", "internal", "lab.example", "llm.default.svc", "x.box.lan"];
            assert_accepted(&names, &others, false);
        }
    }

    #[test]
    fn network_accepts_names_that_no_page_can_own() {
        let open = names(&[], false, false);
        let of_containers = ["llm:8080", "my_project-llm_1", "sterna.default.svc", "pc.home.arpa"];
        let of_cluster = ["sterna.default.svc.cluster.local:80"];
        assert_accepted(&open, &LOCAL, true);
        assert_accepted(&open, &of_containers, true);
        assert_accepted(&open, &of_cluster, true);
        assert_accepted(&open, &OF_PAGES, false);
        let keyed = names(&[], false, true);
        assert_accepted(&keyed, &LOCAL, true);
        assert_accepted(&keyed, &OF_PAGES, true);
        for names in [open, keyed] {
            assert_accepted(&names, &MALFORMED, false);
        }
    }

    #[test]
    fn list_limits_the_names_on_every_address() {
        for (on_loopback, has_keys) in [(false, false), (false, true), (true, false)] {
            let of_list = names(&["box.lan"], on_loopback, has_keys);
            assert_accepted(&of_list, &LOCAL, true);
            assert_accepted(&of_list, &["box.lan:8080"], true);
            assert_accepted(&of_list, &["llm", "sterna.default.svc", "evil.example"], false);
            assert_accepted(&names(&["*"], on_loopback, has_keys), &OF_PAGES, true);
        }
        for entry in ["", "http://box.lan", "box.lan/", "*.lan", "[::1", "."] {
            assert!(!is_entry(entry), "{entry}");
        }
    }
}
