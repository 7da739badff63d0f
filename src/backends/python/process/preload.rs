//! The template of a model: a process that imports it once and forks its instances.

use std::{os::unix::net::UnixStream, sync::Arc};

use parking_lot::Mutex;

use super::{
    children::{Children, Parent},
    launch::{Launched, launch},
    launch_spec::{LaunchError, LaunchSpec, ParentSource},
    worker_process::Process,
};
use crate::python::protocol::messages::messages_of;
use troupe_base::error::Error;

/// What is needed to make the template, again and again, and the one there is.
pub(crate) struct Preload {
    spec: LaunchSpec,
    template: Mutex<Option<Arc<Template>>>,
}

/// A running template. It lives as long as an instance of it does.
struct Template {
    children: Children,
    /// After `children`: it ends by itself once they are closed.
    _process: Arc<Process>,
    /// The template would take its end for the server's.
    _stream: Arc<UnixStream>,
}

impl Preload {
    /// Nothing is started yet.
    pub(crate) fn new(spec: LaunchSpec) -> Arc<Preload> {
        Arc::new(Preload { spec, template: Mutex::default() })
    }

    /// From now on no template gets ready: its instances go.
    fn give_up(&self) {
        self.spec.give_up();
    }

    /// The template, started if there is none. Blocks while the model is imported.
    fn template(&self) -> Result<Arc<Template>, LaunchError> {
        let mut slot = self.template.lock();
        if let Some(template) = slot.as_ref().filter(|it| !it.children.is_gone()) {
            return Ok(template.clone());
        }
        let Launched { process, stream, passing, .. } = launch(&self.spec)?;
        // What passes descriptors to other workers takes orders here.
        let children = Children::new(passing, self.spec.reaper.clone());
        let broken = |error: std::io::Error| Error::internal(format!("a worker's socket: {error}"));
        let (living, process) = (children.living(), Arc::new(process));
        let followed = process.clone();
        let control = children.control().try_clone().map_err(broken)?;
        self.spec.reaper.spawn(async move {
            let Ok(messages) = messages_of(&control) else { return };
            living.listen(messages).await;
            let how = followed.ending().await.how;
            let how = format!("the process that preloaded the model has gone ({how})");
            living.lose_all(&format!("{how} and took it along"));
        });
        let template = Arc::new(Template { children, _process: process, _stream: stream });
        *slot = Some(template.clone());
        Ok(template)
    }
}

impl ParentSource for Arc<Preload> {
    fn running(&self) -> Result<Arc<dyn Parent>, LaunchError> {
        Ok(self.template()?)
    }

    fn give_up(&self) {
        Preload::give_up(self);
    }
}

impl Parent for Template {
    fn children(&self) -> &Children {
        &self.children
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.children.close();
    }
}
