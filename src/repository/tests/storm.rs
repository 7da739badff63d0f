//! Hundreds of loads at once: what each of them reads and copies.

use std::{mem::MaybeUninit, os::fd::OwnedFd, path::Path, sync::Arc};

use futures_util::future::join_all;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use super::Fixture;

const LOADS: usize = 100;

/// How often a folder was opened since the last call.
struct Opens(OwnedFd);

impl Opens {
    fn of(folder: &Path) -> Opens {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        // With both there are no two alike in a row, which would be told as one.
        let flags = WatchFlags::OPEN | WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&events, folder, flags).unwrap();
        Opens(events)
    }

    fn count(&self) -> usize {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut opens = 0;
        while let Ok(event) = reader.next() {
            let is_its_own = event.file_name().is_none();
            let is_open = event.events().contains(inotify::ReadFlags::OPEN);
            opens += usize::from(is_its_own && is_open);
        }
        opens
    }
}

async fn started(name: &str, models: &[String]) -> Fixture {
    let models: Vec<&str> = models.iter().map(|it| &**it).collect();
    let mut fixture = Fixture::new(name, &models);
    let settings = fixture.settings();
    fixture.start(settings).await;
    fixture
}

async fn load_all(fixture: &Fixture) {
    let loads = (0..LOADS).map(async |it| fixture.act(&format!("load m{it}")).await);
    assert!(join_all(loads).await.iter().all(|it| it == "ok"));
}

#[actix::test]
async fn loads_that_come_together_read_the_folders_together() {
    let models: Vec<String> = (0..LOADS).map(|it| format!("m{it}")).collect();
    let fixture = started("storm", &models).await;
    let opens = Opens::of(&fixture.models());
    assert_eq!(fixture.act("load m0").await, "ok");
    let of_one = opens.count();
    assert!(0 < of_one);
    load_all(&fixture).await;
    let of_many = opens.count();
    assert!(of_many <= of_one * LOADS / 10, "{of_many} for {LOADS} loads, {of_one} for one");
}

/// All of them are related by the model that they run: each load goes through all.
#[actix::test]
async fn a_load_copies_nothing_of_models_that_stay_as_they_are() {
    let mut models: Vec<String> = (0..LOADS).map(|it| format!("m{it}: step")).collect();
    models.push("step".to_owned());
    let fixture = started("related", &models).await;
    load_all(&fixture).await;
    let catalog = || fixture.repository.as_ref().unwrap().catalog.load_full();
    let before = catalog();
    load_all(&fixture).await;
    assert!(Arc::ptr_eq(&before, &catalog()));
    fixture.write("m0 dims=2: step");
    assert_ne!(fixture.act("load m0").await, "ok");
    assert!(!Arc::ptr_eq(&before, &catalog()));
}
