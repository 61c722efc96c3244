//! One client cannot keep the server from others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::client::{TestServer, read_head};
use super::load::{Act, engine_that};

/// True if the server has sent something, or has closed the connection.
fn has_news(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !peeked.is_err_and(|err| err.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn idle_connections_give_up_their_places() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(10)));
    let server = TestServer::with_engine(slow, |options| options.max_connections = 4);
    let body = json!({ "prompt": "You", "n_predict": 150, "ignore_eos": true, "stream": true });
    let mut answered = server.begin("/completion", &body);
    assert_eq!(read_head(&mut answered).0, 200);
    let head = "POST /completion HTTP/1.1\r\nHost: localhost\r\n";
    for begun in ["", head, &format!("{head}Content-Length: 100\r\n\r\n{{")] {
        let mut idle: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
        idle.iter_mut().for_each(|stream| stream.write_all(begun.as_bytes()).unwrap());
        server.still_answers();
        server.until("the oldest is closed", |_| has_news(&idle[0]));
    }
    let mut kept: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut kept {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 2000]);
    }
    server.still_answers();
    // The connection that was being answered has stayed.
    let mut text = String::new();
    answered.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"stop\":true"), "{text}");
}
