//! How often, and for how long, clients repeat requests that fail for a reason that may pass.

use crate::error::Result;
use crate::options::argument;

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};
use serde_json::{Map, Value};

/// What `storage_options` say of it under `retry_config`, obstore's name. What they do not say is up to the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retries {
    most: Option<usize>,
    timeout: Option<Duration>,
}

impl Retries {
    /// `{"max_retries": 3, "retry_timeout": "10 seconds"}`; a number is one of seconds.
    ///
    /// # Errors
    /// Names the option that cannot be used.
    pub fn new(options: &Map<String, Value>) -> Result<Self> {
        let refused = |name: &str, problem: &str| {
            Err(argument("storage_options", format!("has retry_config with \"{name}\" {problem}")))
        };
        let mut retries = Self::default();
        for (name, value) in options {
            match name.as_str() {
                "max_retries" => match value.as_u64().and_then(|most| usize::try_from(most).ok()) {
                    Some(most) => retries.most = Some(most),
                    None => return refused(name, &format!("{value}, which is no number of requests")),
                },
                "retry_timeout" => match duration(value) {
                    Some(timeout) => retries.timeout = Some(timeout),
                    None => return refused(name, &no_duration(value)),
                },
                _ => return refused(name, "in it, which is not \"max_retries\" and not \"retry_timeout\""),
            }
        }
        Ok(retries)
    }

    /// The settings of a client. `default`: how long requests are repeated where the options do not say it.
    pub fn config(self, default: Duration) -> RetryConfig {
        // Each pause is drawn from 100 ms to three times the last one. With a factor of two, the default, pauses do not grow in the mean, and
        // ten of them end within seconds.
        let backoff =
            BackoffConfig { base: 3.0, max_backoff: Duration::from_secs(5), ..BackoffConfig::default() };
        let retry_timeout = self.timeout.unwrap_or(default);
        let max_retries = self.most.unwrap_or((retry_timeout.as_secs() as usize).max(10));
        RetryConfig { backoff, max_retries, retry_timeout }
    }
}

/// A duration in `storage_options`: a number of seconds, or text with units as in `"1min 30s"`; `None` for anything else.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => humantime::parse_duration(text).ok(),
        value => Duration::try_from_secs_f64(value.as_f64()?).ok(),
    }
}

/// What is wrong with a value that is no duration, and what would be one.
pub(super) fn no_duration(value: &Value) -> String {
    format!(
        "{value}, which is no duration; give a number of seconds from 0 on, such as 30, or a text with units, such as \"30 s\" or \"1min 30s\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(options: Value) -> Result<Retries> {
        Retries::new(options.as_object().unwrap())
    }

    #[test]
    fn what_options_do_not_say_is_up_to_the_session() {
        let default = Duration::from_secs(180);
        for (options, most, timeout_s) in [
            (json!({}), 180, 180.0),
            (json!({"max_retries": 0}), 0, 180.0),
            (json!({"retry_timeout": "1 minute"}), 60, 60.0),
            (json!({"retry_timeout": 1.5}), 10, 1.5),
            (json!({"retry_timeout": 2, "max_retries": 3}), 3, 2.0),
        ] {
            let config = parse(options.clone()).unwrap().config(default);
            assert_eq!(
                (config.max_retries, config.retry_timeout.as_secs_f64()),
                (most, timeout_s),
                "{options}"
            );
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        for (options, text) in [
            (json!({"max_retries": -1}), "\"max_retries\" -1, which is no number"),
            (json!({"retry_timeout": "soon"}), "\"retry_timeout\" \"soon\", which is no duration"),
            (
                json!({"retry_timeout": -1}),
                "\"retry_timeout\" -1, which is no duration; give a number of seconds",
            ),
            (json!({"backoff": {}}), "\"backoff\" in it, which is not"),
        ] {
            let error = parse(options).unwrap_err().to_string();
            assert!(error.contains("storage_options") && error.contains(text), "{error}");
        }
    }
}
