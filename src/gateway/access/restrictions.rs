//! Restricted APIs: which group of endpoints asks for which header.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::Denied;
use troupe_options::{Api, RestrictedGroup, Secret};

/// By group: the header it asks for.
#[derive(Clone, Debug, Default)]
pub struct Restrictions([Option<Arc<Key>>; Api::ALL.len()]);

/// A header and what it has to say.
#[derive(Debug)]
pub(super) struct Key {
    /// In lower case.
    header: String,
    shown: Arc<str>,
    value: Secret,
}

impl Restrictions {
    /// As the command line has them.
    pub fn new(groups: &[RestrictedGroup]) -> Restrictions {
        let mut restrictions = Restrictions::default();
        for group in groups {
            let key = Arc::new(Key {
                header: group.header.clone(),
                shown: group.written_header.as_str().into(),
                value: group.value.clone(),
            });
            for api in &group.apis {
                restrictions.0[*api as usize] = Some(key.clone());
            }
        }
        restrictions
    }

    /// The header that a group asks for.
    pub fn header(&self, api: Api) -> Option<&str> {
        self.of(api).map(|it| &*it.shown)
    }

    /// What a group asks for.
    pub(super) fn of(&self, api: Api) -> Option<&Key> {
        self.0[api as usize].as_deref()
    }

    pub(super) fn check<'a>(
        &self,
        api: Api,
        header: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<(), Denied> {
        let Some(key) = self.of(api) else { return Ok(()) };
        // How long this takes says nothing about where a wrong value is wrong.
        let is_right =
            header(&key.header).is_some_and(|it| bool::from(it.ct_eq(key.value.bytes())));
        if is_right { Ok(()) } else { Err(Denied::Restricted(key.shown.clone())) }
    }
}
