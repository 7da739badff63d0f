//! The trace extension: reads and changes settings.

use crate::{ServerState, trace_settings};
use troupe_base::error::Result;
use troupe_proto::inference::{
    TraceSettingRequest, TraceSettingResponse, trace_setting_response::SettingValue,
};

/// The settings of the server or of a model, after the changes of the request.
pub(super) fn setting(
    state: &ServerState,
    request: TraceSettingRequest,
) -> Result<TraceSettingResponse> {
    let changes = request.settings.into_iter().map(|(name, it)| (name, it.value)).collect();
    let shown = trace_settings::set(state, &request.model_name, changes)?;
    let settings = shown.into_iter().map(|(name, value)| (name.to_owned(), SettingValue { value }));
    Ok(TraceSettingResponse { settings: settings.collect() })
}
