//! Subjects from JSON Web Tokens: a claim counts only when the signature does.

use std::cell::OnceCell;
use std::fmt;

use crate::Request;

/// What verifies tokens.
#[derive(Clone)]
pub struct Verifier {
    #[cfg(feature = "jwt")]
    key: jsonwebtoken::DecodingKey,
    #[cfg(feature = "jwt")]
    validation: jsonwebtoken::Validation,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier(..)")
    }
}

/// The verified claims of one request's token, looked at once.
#[derive(Debug)]
pub(crate) struct Tokens<'v> {
    #[allow(dead_code, reason = "unused without the feature jwt")]
    verifier: Option<&'v Verifier>,
    claims: OnceCell<Option<serde_json::Map<String, serde_json::Value>>>,
}

impl<'v> Tokens<'v> {
    pub(crate) fn new(verifier: Option<&'v Verifier>) -> Self {
        Tokens { verifier, claims: OnceCell::new() }
    }

    /// A claim of the request's bearer token as text, if the token is verified and has it as a string or a number.
    pub(crate) fn claim(&self, request: &Request<'_>, name: &str) -> Option<String> {
        let claims = self.claims.get_or_init(|| self.verify(request.bearer().once()?)).as_ref()?;
        match claims.get(name)? {
            serde_json::Value::String(text) if !text.is_empty() => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    #[cfg(feature = "jwt")]
    fn verify(&self, token: &[u8]) -> Option<serde_json::Map<String, serde_json::Value>> {
        let verifier = self.verifier?;
        let token = std::str::from_utf8(token).ok()?;
        jsonwebtoken::decode(token, &verifier.key, &verifier.validation).ok().map(|data| data.claims)
    }

    #[cfg(not(feature = "jwt"))]
    fn verify(&self, _token: &[u8]) -> Option<serde_json::Map<String, serde_json::Value>> {
        None
    }
}

#[cfg(feature = "jwt")]
impl Verifier {
    /// A verifier for one algorithm (`HS256`, `RS256`, `ES256`, `EdDSA` and their kin) and its key: a shared secret, or a
    /// public key in PEM. A token must not be expired, and must have this issuer and audience where they are given.
    ///
    /// # Errors
    /// A message when the algorithm is unknown or the key does not read as one of it.
    pub fn new(
        algorithm: &str,
        key: &[u8],
        issuer: Option<&str>,
        audience: Option<&str>,
    ) -> Result<Self, String> {
        use jsonwebtoken::{Algorithm as A, DecodingKey};
        let parsed: A = algorithm.parse().map_err(|_| {
            format!("`{algorithm}` is no algorithm; expected HS256, HS384, HS512, RS256, PS256, ES256, ES384 or EdDSA")
        })?;
        let secret = key.trim_ascii();
        let key = match parsed {
            A::HS256 | A::HS384 | A::HS512 if secret.starts_with(b"-----BEGIN") => {
                return Err(format!("the key is in PEM, but {algorithm} takes a shared secret"));
            }
            A::HS256 | A::HS384 | A::HS512 if secret.len() < 16 => {
                return Err("a shared secret has at least 16 bytes".to_owned());
            }
            A::HS256 | A::HS384 | A::HS512 => Ok(DecodingKey::from_secret(secret)),
            A::ES256 | A::ES384 => DecodingKey::from_ec_pem(key),
            A::EdDSA => DecodingKey::from_ed_pem(key),
            _ => DecodingKey::from_rsa_pem(key),
        };
        let key = key.map_err(|_| format!("the key is not a public key in PEM for {algorithm}"))?;
        let mut validation = jsonwebtoken::Validation::new(parsed);
        validation.validate_nbf = true;
        validation.validate_aud = audience.is_some();
        let named = [("exp", true), ("iss", issuer.is_some()), ("aud", audience.is_some())];
        let required: Vec<&str> =
            named.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect();
        validation.set_required_spec_claims(&required);
        audience.iter().for_each(|audience| validation.set_audience(&[audience]));
        issuer.iter().for_each(|issuer| validation.set_issuer(&[issuer]));
        Ok(Verifier { key, validation })
    }
}
