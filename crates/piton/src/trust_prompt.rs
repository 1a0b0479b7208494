//! Asking for trust: nothing that a repository supplies is executed before its user has seen it.

use piton_engine::error::EngineError;
use piton_engine::git::shell::word;
use piton_engine::trust::{Trust, TrustList};

use crate::error::{Detail, Problem, trust_rows};
use crate::text::{bold, green, red};
use crate::typed::again;
use crate::ui::{Said, Ui};

/// How trust may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consent {
    /// Ask on the terminal; without one, refuse.
    Ask,
    /// It was given on the command line.
    Given,
}

impl Consent {
    /// From `--trust`.
    pub(crate) fn asked(trust: bool) -> Consent {
        if trust { Consent::Given } else { Consent::Ask }
    }
}

/// Goes on only if everything on the list was agreed to, and that is recorded.
pub(crate) fn require(ui: &Ui, list: &TrustList, consent: Consent) -> Result<(), Problem> {
    let Trust::Untrusted { new, gone } = list.look_up()? else { return Ok(()) };
    if consent == Consent::Ask {
        let rows = trust_rows(&new, &gone);
        let plan = word(&list.plan.display().to_string());
        let how = format!("`piton trust {plan}`; or `{}`", again("--trust"));
        let refused = Problem::from(EngineError::Untrusted { plan: list.plan.clone(), new, gone })
            .hint(format!("look at them, then: {how}"));
        if !ui.can_ask() {
            return Err(refused);
        }
        show(ui, list, &rows);
        if ui.ask("Trust these and go on?") != Said::Yes {
            return Err(refused.with_details(Vec::new()));
        }
    }
    Ok(list.grant()?)
}

/// Shows the list, or what changed in it.
pub(crate) fn show(ui: &Ui, list: &TrustList, rows: &[Detail]) {
    ui.talk(format!("{} would execute on this machine:", bold(&list.plan.display().to_string())));
    for row in rows {
        let sign = row.message.chars().next();
        ui.talk(match sign {
            Some('+') => format!("  {}", green(&row.message)),
            Some('-') => format!("  {}", red(&row.message)),
            _ => format!("  {}", row.message),
        });
    }
}
