//! The template of a model: a process that imports it once and forks its instances.

use std::{os::unix::net::UnixStream, sync::Arc};

use parking_lot::Mutex;

use super::{
    forks::{Forks, Parent, listen, lose},
    keeper::keeper,
    messages::messages_of,
    process::{Launched, Process, Refused, launch},
    recipe::Recipe,
};
use troupe_base::error::Error;

/// What is needed to make the template, again and again, and the one there is.
pub(super) struct Preload {
    recipe: Recipe,
    template: Mutex<Option<Arc<Template>>>,
}

/// A running template. It lives as long as an instance of it does.
pub(super) struct Template {
    forks: Forks,
    /// After `forks`: it ends by itself once it is told that nobody wants more of it.
    _process: Arc<Process>,
    /// The template would take its end for the server's.
    _stream: UnixStream,
}

impl Preload {
    /// Nothing is started yet.
    pub(super) fn new(recipe: Recipe) -> Arc<Preload> {
        Arc::new(Preload { recipe, template: Mutex::default() })
    }

    /// From now on no template gets ready: its instances go.
    pub(super) fn give_up(&self) {
        self.recipe.give_up();
    }

    /// The template, started if there is none. Blocks while the model is imported.
    pub(super) fn template(&self) -> Result<Arc<Template>, Refused> {
        let mut slot = self.template.lock();
        if let Some(template) = slot.as_ref().filter(|it| !it.forks.is_gone()) {
            return Ok(template.clone());
        }
        let Launched { process, stream, passing, .. } = launch(&self.recipe)?;
        // What passes descriptors to other workers takes orders here.
        let forks = Forks::new(passing);
        let broken = |error: std::io::Error| Error::internal(format!("a worker's socket: {error}"));
        let (workers, process) = (forks.workers(), Arc::new(process));
        let followed = process.clone();
        let control = forks.control().try_clone().map_err(broken)?;
        keeper().spawn(async move {
            let Ok(messages) = messages_of(&control) else { return };
            listen(messages, &workers).await;
            let how = followed.ending().await.how;
            let how = format!("the process that preloaded the model has gone ({how})");
            lose(&workers, &format!("{how} and took it along"));
        });
        let template = Arc::new(Template { forks, _process: process, _stream: stream });
        *slot = Some(template.clone());
        Ok(template)
    }
}

impl Parent for Template {
    fn forks(&self) -> &Forks {
        &self.forks
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.forks.close();
    }
}
