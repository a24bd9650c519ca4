//! Reservations over HTTP: `POST /v1/reserve`, and `POST /v1/settle` when it is known what was used.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tollgate::{Asked, MAX_ID_BYTES, MAX_SUBJECT_BYTES, Reserved, Settled};

use crate::answer::{self, problem};
use crate::app::{App, Door};
use crate::body::{self, Body};
use crate::check::{MAX_CHECK_BYTES, milliseconds, standings};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToReserve {
    policy: String,
    #[serde(default)]
    subject: String,
    cost: u64,
    id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToSettle {
    reservation: String,
    cost: u64,
}

async fn read<T: DeserializeOwned>(app: &App, request: Request<Incoming>) -> Result<T, Response<Body>> {
    let pause = app.settings.limits.body_timeout;
    let body = body::read(request.into_body(), MAX_CHECK_BYTES, pause).await;
    let body =
        body.map_err(|cut| problem(cut.status(), &format!("{cut} At most {MAX_CHECK_BYTES} bytes.")))?;
    serde_json::from_slice(&body).map_err(|error| problem(StatusCode::BAD_REQUEST, &error.to_string()))
}

/// Reserves.
pub async fn reserve(app: &App, request: Request<Incoming>) -> Response<Body> {
    let asked: ToReserve = match read(app, request).await {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let wrong = if asked.cost == 0 {
        Some("cost: expected at least 1".to_owned())
    } else if asked.id.is_empty() || asked.id.len() > MAX_ID_BYTES {
        Some(format!("id: expected 1 to {MAX_ID_BYTES} bytes"))
    } else if asked.subject.len() > MAX_SUBJECT_BYTES {
        Some(format!("subject: at most {MAX_SUBJECT_BYTES} bytes"))
    } else {
        None
    };
    if let Some(wrong) = wrong {
        return problem(StatusCode::BAD_REQUEST, &wrong);
    }
    let (policy, subject, id) = (&asked.policy, &asked.subject, asked.id.as_bytes());
    let reserved = Reserved { policy, subject, units: asked.cost, id };
    let ruling = app.decide(Door::Check, &[Asked::Reserve(reserved)]).await;
    let mut body = standings(&ruling);
    body["reservation"] = ruling.reservation.as_ref().map_or(json!(null), |reservation| {
        json!({
            "token": reservation.token,
            "cost": reservation.units,
            "lapses_after_ms": milliseconds(reservation.ends.saturating_sub(ruling.now)),
            "repeated": reservation.repeated,
        })
    });
    let mut response = answer::json(ruling.reason.status(), &body);
    app.settings.contract.write(&ruling, response.headers_mut());
    response
}

/// Settles.
pub async fn settle(app: &App, request: Request<Incoming>) -> Response<Body> {
    let asked: ToSettle = match read(app, request).await {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let settled = app.settle(asked.reservation, asked.cost).await;
    let (given_back, added, dropped) = match settled {
        Settled::Now { given_back, added, dropped } => (given_back, added, dropped),
        Settled::Before => (0, 0, 0),
        Settled::Lapsed => {
            return problem(StatusCode::GONE, "The reservation has lapsed: what it reserved stays charged.");
        }
        Settled::Unknown => return problem(StatusCode::NOT_FOUND, "There is no such reservation here."),
        Settled::Unavailable => {
            let mut response = problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "The count is out of reach. It is safe to send the same again.",
            );
            response.headers_mut().insert(http::header::RETRY_AFTER, 1.into());
            return response;
        }
    };
    let again = settled == Settled::Before;
    let body = json!({ "settled": true, "repeated": again, "given_back": given_back, "added": added, "dropped": dropped });
    answer::json(StatusCode::OK, &body)
}
