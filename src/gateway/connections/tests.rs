//! Real sockets that are admitted, refused and closed.

use std::{
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::*;
use crate::socket::{Binding, ListeningSocket};
use troupe_base::budget::ByteBudget;

const LONG: Duration = Duration::from_secs(60);

/// The server's side and the client's.
fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

fn is_closed(client: &mut TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    matches!(client.read(&mut [0]), Ok(0))
}

#[test]
fn the_longest_idle_go_first_and_busy_ones_stay() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connections = Connections::new(
        ConnectionLimits { connections: 5, descriptors: 1 << 20, reserved: 64 },
        &ByteBudget::unlimited(),
    );
    let (mut clients, mut guards, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..4 {
        let (socket, client) = pair(&listener);
        let guard = connections.admit(&socket).unwrap();
        // Those over which nothing was asked go first.
        drop(guard.connection().begin());
        guards.push(guard);
        clients.push(client);
        sockets.push(socket);
    }
    guards[0].connection().age(LONG);
    guards[1].connection().age(LONG);
    let busy = guards[1].connection().begin();
    let (socket, _client) = pair(&listener);
    let fifth = connections.admit(&socket).unwrap();
    let closed: Vec<bool> = clients.iter_mut().map(is_closed).collect();
    assert_eq!(closed, [true, false, false, false]);
    assert_eq!(connections.open(), 4, "who is closed takes no room");
    drop(fifth.connection().begin());
    let (socket, _client) = pair(&listener);
    let sixth = connections.admit(&socket).unwrap();
    drop(sixth.connection().begin());
    let (socket, _client) = pair(&listener);
    assert!(connections.admit(&socket).is_none(), "five are open until their guards go");
    assert_eq!((connections.open(), connections.refused()), (5, 1));
    drop(guards.remove(0));
    assert_eq!(connections.open(), 5, "it went before");
    drop(guards.remove(0));
    assert!(connections.admit(&socket).is_some());
    drop((busy, fifth, sixth));
}

#[test]
fn a_new_one_replaces_one_that_is_idle_for_a_second_where_all_are_open() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = ConnectionLimits { connections: 2, descriptors: 1 << 20, reserved: 64 };
    let connections = Connections::new(limits, &ByteBudget::unlimited());
    let (first, mut first_client) = pair(&listener);
    let (second, mut second_client) = pair(&listener);
    let first = (connections.admit(&first).unwrap(), first);
    first.0.connection().age(Duration::from_secs(2));
    let second = (connections.admit(&second).unwrap(), second);
    drop(second.0.connection().begin());
    assert!(!is_closed(&mut first_client), "there was room for both");
    // Looks for idle ones have a pause between them.
    std::thread::sleep(Duration::from_millis(200));
    let (third, _client) = pair(&listener);
    let third = (connections.admit(&third).expect("the first makes room"), third);
    assert!(is_closed(&mut first_client));
    assert!(!is_closed(&mut second_client));
    drop((first, second, third));
}

#[test]
fn those_over_which_nothing_was_asked_go_first() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = ConnectionLimits { connections: 4, descriptors: 1 << 20, reserved: 64 };
    let connections = Connections::new(limits, &ByteBudget::unlimited());
    let mut open: Vec<_> = (0..4)
        .map(|_| {
            let (socket, client) = pair(&listener);
            (connections.admit(&socket).unwrap(), client, socket)
        })
        .collect();
    drop(open[0].0.connection().begin());
    open[0].0.connection().age(LONG);
    let _busy = open[1].0.connection().begin();
    let newcomer = || {
        std::thread::sleep(2 * Duration::from_millis(100));
        let (socket, client) = pair(&listener);
        (connections.admit(&socket).expect("one makes room"), client, socket)
    };
    let newcomers = [newcomer(), newcomer()];
    let closed: Vec<bool> = open.iter_mut().map(|(_, client, _)| is_closed(client)).collect();
    assert_eq!(closed, [false, false, true, true]);
    drop(newcomers[0].0.connection().begin());
    drop(newcomers[1].0.connection().begin());
    drop(newcomer());
    assert!(is_closed(&mut open[0].1), "then the one that is idle the longest");
}

#[test]
fn accepted_connections_inherit_what_ends_dead_ones() {
    use rustix::net::sockopt;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let bound = Binding::from(any_port).bind(Duration::from_secs(7)).unwrap();
    let ListeningSocket::Tcp(listener) = bound.socket else { panic!("it is a port") };
    listener.set_nonblocking(false).unwrap();
    let (socket, _client) = pair(&listener);
    assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 7000);
    assert!(sockopt::tcp_nodelay(&socket).unwrap());
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(60));
}
