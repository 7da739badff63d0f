//! Follows a worker to its end, and starts another as long as its instance lives.

use std::{cell::RefCell, future::Future, rc::Weak, time::Duration};

use tokio::net::unix::OwnedReadHalf;

use super::{
    super::{
        connection::{connect, read},
        keeper::keeper,
        process::launch,
    },
    Link, State,
    flight::tell,
    unhealthy,
};
use crate::error::Error;

/// How long until a worker that cannot be started is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Reads frames until the worker ends, then starts another, as long as the instance lives.
pub(super) async fn attend(link: Weak<RefCell<Link>>, mut reader: OwnedReadHalf) {
    loop {
        let broken = read(&mut reader, |frame| {
            let Some(held) = link.upgrade() else { return Ok(()) };
            let news = held.borrow_mut().obey(frame, &link)?;
            tell(news);
            Ok(())
        })
        .await;
        let Some(next) = revive(&link, broken.err()).await else { return };
        reader = next;
    }
}

/// Fails what the dead worker had, and starts another; `None` once the instance has gone.
async fn revive(link: &Weak<RefCell<Link>>, broken: Option<String>) -> Option<OwnedReadHalf> {
    let held = link.upgrade()?;
    let fixed = held.borrow().fixed.clone();
    let down = State::Down(unhealthy(&fixed, "a new worker is being started"));
    let State::Up(connection) = std::mem::replace(&mut held.borrow_mut().state, down) else {
        return None;
    };
    fixed.health.down();
    drop(held);
    if broken.is_some() {
        connection.process.kill();
    }
    let mut text = connection.process.ending().await;
    if let Some(broken) = broken {
        text = format!("it sent {broken} and was killed; {text}");
    }
    drop(connection);
    let text = unhealthy(&fixed, &text);
    tracing::error!(target: "troupe::python", model = %fixed.config.name, "{}", text.replace('\n', " | "));
    let held = link.upgrade()?;
    let (news, mut waiting) = held.borrow_mut().give_up(&Error::unavailable(text));
    drop(held);
    tell(news);
    let mut pause = Duration::ZERO;
    loop {
        let recipe = fixed.recipe.clone();
        let launched = while_alive(link, keeper().spawn_blocking(move || launch(&recipe))).await?;
        let error = match launched {
            Ok(Ok(launched)) => {
                let held = link.upgrade()?;
                let (connection, reader) = connect(launched).ok()?;
                held.borrow_mut().state = State::Up(Box::new(connection));
                fixed.health.up();
                drop(held);
                drop(waiting);
                return Some(reader);
            }
            Ok(Err(refused)) => refused.error.to_string(),
            Err(error) => error.to_string(),
        };
        pause = if pause.is_zero() { RETRY.0 } else { RETRY.1.min(2 * pause) };
        let next = format!("{error}\nNext attempt within {} ms", pause.as_millis());
        link.upgrade()?.borrow_mut().state = State::Down(unhealthy(&fixed, &next));
        waiting.clear();
        while_alive(link, tokio::time::sleep(pause)).await?;
    }
}

/// The future's output, or `None` if the instance has gone by then.
async fn while_alive<F: Future>(link: &Weak<RefCell<Link>>, future: F) -> Option<F::Output> {
    let output = future.await;
    (0 < link.strong_count()).then_some(output)
}
