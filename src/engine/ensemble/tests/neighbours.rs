//! Where the actors of ensembles are: together with the models of the outermost one.

use std::thread::{self, ThreadId};

use super::{fakes::response, *};

/// Says on which threads it is asked.
struct Located(std::sync::mpsc::Sender<ThreadId>);

impl Infer for Located {
    fn infer(&self, _: Request, reply: Reply) {
        let _ = self.0.send(thread::current().id());
        reply.answer(Ok(response(&[1])));
    }
}

async fn thread_of(engines: &Engines, number: usize) -> ThreadId {
    let (sender, id) = oneshot::channel();
    engines.all()[number].spawn_fn(move || sender.send(thread::current().id()).unwrap());
    id.await.unwrap()
}

#[test]
fn the_actors_of_an_ensemble_are_with_the_models_of_the_outermost_one() {
    System::new().block_on(async {
        let mut fixture = Fixture::of_threads(3);
        fixture.fake("located", ("x:1", "y:1"));
        let (sender, asked) = std::sync::mpsc::channel();
        let config = fixture.models["located"].config.clone();
        let (stats, health) = (Arc::<Statistics>::default(), Arc::<Health>::default());
        let parts = ModelParts { config, version: 1, stats, health, steps: Vec::new() };
        let located = Arc::new(Model::new(parts, Arc::new(Located(sender))));
        fixture.models.insert("located".into(), located);
        let outermost = fixture.engines.beside(&"outer".into());
        let expected = thread_of(&fixture.engines, outermost.thread()).await;
        // A limit is counted in one place.
        (fixture.limit, fixture.around) = (1, Some("outer"));
        let steps = ["located: x=IN -> y=OUT"];
        fixture.ensemble("inner", 0, ("IN:1", "OUT:1"), &steps).await.unwrap();
        for _ in 0..3 {
            fixture.ask("inner", &[&[1]], Wanted::All).await.unwrap();
            assert_eq!(asked.recv().unwrap(), expected);
        }
    });
}

#[test]
fn an_ensemble_whose_steps_start_anywhere_takes_no_place() {
    System::new().block_on(async {
        let mut fixture = Fixture::of_threads(3);
        let beside = |name: &str| fixture.engines.beside(&name.into());
        let held = [beside("a"), beside("b")];
        fixture.fake("fake", ("x:1", "y:1"));
        fixture.ensemble("free", 0, ("IN:1", "OUT:1"), &["fake: x=IN -> y=OUT"]).await.unwrap();
        let third = fixture.engines.beside(&"c".into());
        assert!(held.iter().all(|it| it.thread() != third.thread()));
    });
}
