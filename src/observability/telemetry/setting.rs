//! Trace settings: sampling rate, count and level of the server, and of models with their own.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering::Relaxed},
    },
};

use troupe_base::{
    error::{Error, Result},
    trace::TraceSink,
};
use troupe_options::{TraceConfig, TraceLevels, TraceMode};

/// The change of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum FieldChange<T> {
    /// Keeps the value.
    #[default]
    Keep,
    /// Clears the value: a model's falls back to the server's, the server's to the command line's.
    Clear,
    /// Sets the value.
    Set(T),
}

/// A change of settings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "as in `TraceConfig`")]
pub struct TraceUpdate {
    pub levels: FieldChange<TraceLevels>,
    pub rate: FieldChange<u32>,
    pub count: FieldChange<i32>,
    pub log_frequency: FieldChange<u32>,
}

/// The fields that were set explicitly and not cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ExplicitValues {
    levels: Option<TraceLevels>,
    rate: Option<u32>,
    count: Option<i32>,
    log_frequency: Option<u32>,
}

/// The values of all fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Values {
    pub(super) levels: TraceLevels,
    pub(super) rate: u32,
    pub(super) count: i32,
    pub(super) log_frequency: u32,
}

/// Counts the requests of one setting, to sample one in `rate` up to a count.
#[derive(Debug)]
pub(super) struct SampleCounter {
    /// Requests that arrived.
    seen: AtomicU64,
    /// Requests that were sampled.
    pub(super) taken: AtomicU64,
    /// Requests that may still be sampled; -1: no limit.
    pub(super) left: AtomicI32,
}

/// One setting, of the server or of a model, until it is replaced.
pub(super) struct Setting {
    pub(super) values: Values,
    pub(super) tally: Arc<SampleCounter>,
    /// Where traces go; `None` if no destination was configured.
    pub(super) sink: Option<Arc<dyn TraceSink>>,
    given: ExplicitValues,
}

/// All settings. Immutable: a change makes new ones.
#[derive(Clone)]
pub(super) struct Settings {
    start: Values,
    mode: TraceMode,
    has_target: bool,
    global: Arc<Setting>,
    /// Of models that differ.
    models: HashMap<String, Arc<Setting>>,
}

/// Makes the sink for the traces of one setting.
pub(super) type MakeSink<'a> =
    &'a dyn Fn(&Values, &Arc<SampleCounter>) -> Option<Arc<dyn TraceSink>>;

impl SampleCounter {
    fn new(count: i32) -> Arc<SampleCounter> {
        let (seen, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(SampleCounter { seen, taken, left: AtomicI32::new(count) })
    }

    /// Counts a request; whether it is sampled: it is one in `rate`, and the count is not used up.
    pub(super) fn takes_next(&self, rate: u32) -> bool {
        if rate == 0 || self.left.load(Relaxed) == 0 {
            return false;
        }
        let number = self.seen.fetch_add(1, Relaxed) + 1;
        if !number.is_multiple_of(rate.into()) {
            return false;
        }
        let less = |left: i32| match left {
            0 => None,
            left if left < 0 => Some(left),
            left => Some(left - 1),
        };
        let is_left = self.left.fetch_update(Relaxed, Relaxed, less).is_ok();
        self.taken.fetch_add(u64::from(is_left), Relaxed);
        is_left
    }
}

impl Setting {
    fn new(values: Values, given: ExplicitValues, make: MakeSink<'_>) -> Arc<Setting> {
        let tally = SampleCounter::new(values.count);
        let sink = make(&values, &tally);
        Arc::new(Setting { values, tally, sink, given })
    }

    /// The values, with what is left of the count.
    pub(super) fn now(&self) -> Values {
        Values { count: self.tally.left.load(Relaxed), ..self.values }
    }
}

impl Settings {
    /// As the command line says.
    pub(super) fn new(config: &TraceConfig, make: MakeSink<'_>) -> Settings {
        let TraceConfig { levels, rate, count, log_frequency, .. } = *config;
        let start = Values { levels, rate, count, log_frequency };
        let global = Setting::new(start, ExplicitValues::default(), make);
        let has_target = config.mode == TraceMode::OpenTelemetry || !config.file.is_empty();
        Settings { start, mode: config.mode, has_target, global, models: HashMap::new() }
    }

    /// Whether requests of any model may be sampled.
    pub(super) fn is_on(&self) -> bool {
        let mut all = self.models.values().chain([&self.global]);
        all.any(|it| !it.values.levels.is_off())
    }

    /// The setting of a model.
    pub(super) fn of(&self, model: &str) -> &Arc<Setting> {
        if self.models.is_empty() {
            return &self.global;
        }
        self.models.get(model).unwrap_or(&self.global)
    }

    /// The settings after a change to the server's setting, or to a model's.
    pub(super) fn updated(
        &self,
        model: Option<&str>,
        update: &TraceUpdate,
        make: MakeSink<'_>,
    ) -> Result<Settings> {
        let mut new = self.clone();
        let Some(model) = model else {
            new.global = self.changed(Some(&self.global), self.start, update, make)?;
            for setting in new.models.values_mut() {
                let fallback = new.global.now();
                *setting = self.changed(Some(setting), fallback, &TraceUpdate::default(), make)?;
            }
            return Ok(new);
        };
        let current = self.models.get(model).map(|it| &**it);
        let setting = self.changed(current, self.global.now(), update, make)?;
        if setting.given == ExplicitValues::default() {
            new.models.remove(model);
        } else {
            new.models.insert(model.to_owned(), setting);
        }
        Ok(new)
    }

    fn changed(
        &self,
        current: Option<&Setting>,
        fallback: Values,
        update: &TraceUpdate,
        make: MakeSink<'_>,
    ) -> Result<Arc<Setting>> {
        let mut given = current.map(|it| it.given).unwrap_or_default();
        // A count that is used up stays so until it is set again.
        let left = current.map(|it| it.now().count);
        given.count = given.count.and(left);
        change(&mut given.levels, update.levels);
        change(&mut given.rate, update.rate);
        change(&mut given.count, update.count);
        change(&mut given.log_frequency, update.log_frequency);
        let values = Values {
            levels: given.levels.unwrap_or(fallback.levels),
            rate: given.rate.unwrap_or(fallback.rate),
            count: given.count.unwrap_or(fallback.count),
            log_frequency: given.log_frequency.unwrap_or(fallback.log_frequency),
        };
        self.check(&values)?;
        Ok(Setting::new(values, given, make))
    }

    fn check(&self, values: &Values) -> Result<()> {
        let why = match self.mode {
            _ if values.levels.is_off() => return Ok(()),
            TraceMode::Triton if values.rate == 0 => "sample rate must be non-zero",
            _ if !self.has_target => "trace file name is not given",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!("Attempting to set invalid trace setting :{why}")))
    }
}

fn change<T>(field: &mut Option<T>, change: FieldChange<T>) {
    match change {
        FieldChange::Keep => (),
        FieldChange::Clear => *field = None,
        FieldChange::Set(value) => *field = Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: TraceLevels = TraceLevels { timestamps: true, tensors: false };

    fn none(_: &Values, _: &Arc<SampleCounter>) -> Option<Arc<dyn TraceSink>> {
        None
    }

    fn start(config: TraceConfig) -> Settings {
        Settings::new(&TraceConfig { file: "t.json".to_owned(), ..config }, &none)
    }

    #[test]
    fn one_in_so_many_until_none_is_left() {
        let tally = SampleCounter::new(2);
        let taken: Vec<u32> = (1..=10).filter(|_| tally.takes_next(3)).collect();
        assert_eq!(taken, [3, 6]);
        assert_eq!(tally.left.load(Relaxed), 0);
        assert!(!SampleCounter::new(-1).takes_next(0));
        let unlimited = SampleCounter::new(-1);
        assert!((0..10).all(|_| unlimited.takes_next(1)));
    }

    #[test]
    fn a_models_fields_fall_back_to_the_servers() {
        let settings = start(TraceConfig { levels: ON, ..TraceConfig::default() });
        let rate = |rate| TraceUpdate { rate: FieldChange::Set(rate), ..TraceUpdate::default() };
        let settings = settings.updated(Some("m"), &rate(7), &none).unwrap();
        let more = TraceUpdate { count: FieldChange::Set(5), ..rate(9) };
        let settings = settings.updated(None, &more, &none).unwrap();
        let of = |settings: &Settings, model: &str| {
            let now = settings.of(model).now();
            (now.rate, now.count)
        };
        assert_eq!((of(&settings, "m"), of(&settings, "other")), ((7, 5), (9, 5)));
        let clear = TraceUpdate { rate: FieldChange::Clear, ..TraceUpdate::default() };
        let settings = settings.updated(Some("m"), &clear, &none).unwrap();
        assert_eq!(of(&settings, "m"), (9, 5));
        assert!(settings.models.is_empty());
        let clear = TraceUpdate { count: FieldChange::Clear, ..clear };
        assert_eq!(of(&settings.updated(None, &clear, &none).unwrap(), "m"), (1000, -1));
    }

    #[test]
    fn what_was_counted_down_stays_so_when_another_field_changes() {
        let settings = start(TraceConfig { levels: ON, rate: 1, ..TraceConfig::default() });
        let count = TraceUpdate { count: FieldChange::Set(3), ..TraceUpdate::default() };
        let settings = settings.updated(None, &count, &none).unwrap();
        assert!(settings.of("m").tally.takes_next(1));
        let rate = TraceUpdate { rate: FieldChange::Set(2), ..TraceUpdate::default() };
        let settings = settings.updated(None, &rate, &none).unwrap();
        assert_eq!(settings.of("m").now().count, 2);
    }

    #[test]
    fn a_setting_that_would_trace_nothing_is_refused() {
        let settings = start(TraceConfig { levels: ON, ..TraceConfig::default() });
        let rate = TraceUpdate { rate: FieldChange::Set(0), ..TraceUpdate::default() };
        let error = settings.updated(None, &rate, &none).err().unwrap().to_string();
        let text = "Attempting to set invalid trace setting :sample rate must be non-zero";
        assert_eq!(error, text);
        let mode = TraceMode::OpenTelemetry;
        let collected = TraceConfig { mode, levels: ON, ..TraceConfig::default() };
        assert!(Settings::new(&collected, &none).updated(None, &rate, &none).is_ok());
        let nowhere = Settings::new(&TraceConfig::default(), &none);
        let on = TraceUpdate { levels: FieldChange::Set(ON), ..TraceUpdate::default() };
        let error = nowhere.updated(Some("m"), &on, &none).err().unwrap().to_string();
        assert!(error.ends_with("trace file name is not given"), "{error}");
    }
}
