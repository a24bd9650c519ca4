//! Who is counted: a policy's name and a subject, as a fingerprint under the deployment's salt.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate_core::Fingerprint;

/// The longest subject, in bytes.
pub const MAX_SUBJECT_BYTES: usize = 4_096;

/// The deployment's secret: whoever does not know it cannot tell a subject from a fingerprint, nor choose subjects whose
/// fingerprints collide. It is never logged or shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Salt([u8; 16]);

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt(..)")
    }
}

impl Salt {
    /// The fewest characters of a salt's text.
    pub const MIN_TEXT: usize = 16;

    /// A salt from any text of at least [`Salt::MIN_TEXT`] characters. Instances that share a store share it.
    ///
    /// # Errors
    /// A message when the text is too short to be a secret.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < Salt::MIN_TEXT {
            return Err(format!(
                "a salt has at least {} characters, this one has {}",
                Salt::MIN_TEXT,
                text.len()
            ));
        }
        let mut hasher = SipHasher13::new_with_key(b"tollgate's  salt");
        hasher.write(text.as_bytes());
        Ok(Salt(hasher.finish128().as_bytes()))
    }

    /// A salt that nobody knows, for a process whose keys no other process needs to know.
    pub fn random() -> Self {
        // Two outputs of the standard library's own keyed hash, whose keys come from the system's random numbers.
        let half = || RandomState::new().hash_one(0_u8).to_le_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half());
        bytes[8..].copy_from_slice(&half());
        Salt(bytes)
    }

    /// A number that only this salt gives, by which instances and files find out whether they have the same one. No policy has
    /// the name that it is made of, so it gives no key away.
    pub fn check(&self) -> u64 {
        u64::try_from(self.keys_of("/salt/").of(b"check").0 >> 65).unwrap_or(0)
    }

    /// The hasher of one policy's keys.
    pub fn keys_of(&self, policy: &str) -> Keys {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(policy.as_bytes());
        hasher.write_u8(0xFF); // No name holds this byte, so no name and subject read as another pair.
        Keys(hasher)
    }
}

/// Makes the fingerprints of one policy's subjects.
#[derive(Clone)]
pub struct Keys(SipHasher13);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Keys {
    /// The fingerprint of a subject.
    pub fn of(&self, subject: &[u8]) -> Fingerprint {
        let mut hasher = self.0;
        hasher.write(subject);
        Fingerprint(hasher.finish128().as_u128())
    }
}

/// How much of an address is one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Bits of an IPv4 address, 1 to 32.
    pub v4: u8,
    /// Bits of an IPv6 address, 1 to 128.
    pub v6: u8,
}

impl Default for Prefixes {
    /// Every IPv4 address is one subject, every IPv6 /64 network is.
    fn default() -> Self {
        Prefixes { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    /// The subject of an address: the folded address, or the network it is cut to, as text.
    pub fn subject(&self, address: IpAddr) -> String {
        let (address, bits, most) = match fold(address) {
            address @ IpAddr::V4(_) => (address, self.v4, 32),
            address @ IpAddr::V6(_) => (address, self.v6, 128),
        };
        match IpNet::new(address, bits) {
            Ok(network) if bits < most => network.trunc().to_string(),
            _ => address.to_string(),
        }
    }
}

/// The IPv4 address in a v4-mapped (`::ffff:0:0/96`) or NAT64 (`64:ff9b::/96`) one; any other stays as it is.
pub fn fold(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low);
            mapped.to_ipv4_mapped().map_or(address, IpAddr::V4)
        }
        _ => address,
    }
}

/// The same for a network: one of mapped or NAT64 addresses is one of IPv4 addresses.
pub fn fold_network(network: IpNet) -> IpNet {
    let folded = fold(network.addr());
    match (network, folded, network.prefix_len().checked_sub(96)) {
        (IpNet::V6(_), IpAddr::V4(_), Some(bits)) => IpNet::new(folded, bits).unwrap_or(network),
        _ => network,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(address: &str) -> String {
        Prefixes::default().subject(address.parse().unwrap())
    }

    #[test]
    fn addresses_fold_and_are_cut() {
        assert_eq!(subject("192.0.2.7"), "192.0.2.7");
        assert_eq!(subject("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(subject("64:ff9b::192.0.2.7"), "192.0.2.7");
        assert_eq!(subject("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(subject("2001:db8:1:2::9"), "2001:db8:1:2::/64");
        let network = |text: &str| fold_network(text.parse().unwrap()).to_string();
        assert_eq!(network("::ffff:192.0.2.0/120"), "192.0.2.0/24");
        assert_eq!(network("64:ff9b::/96"), "0.0.0.0/0");
        assert_eq!(network("2001:db8::/32"), "2001:db8::/32");
        let coarse = Prefixes { v4: 24, v6: 48 };
        assert_eq!(coarse.subject("192.0.2.7".parse().unwrap()), "192.0.2.0/24");
        assert_eq!(coarse.subject("2001:db8:1:2::9".parse().unwrap()), "2001:db8:1::/48");
    }

    #[test]
    fn a_key_is_policy_and_subject_under_the_salt() {
        let salt = Salt::from_text("sixteen or more characters").unwrap();
        let other = Salt::from_text("sixteen or more characterz").unwrap();
        let key = salt.keys_of("login").of(b"alice");
        assert_eq!(key, salt.keys_of("login").of(b"alice"));
        assert_ne!(key, salt.keys_of("login2").of(b"alice"));
        assert_ne!(key, salt.keys_of("logi").of(b"nalice"));
        assert_ne!(key, other.keys_of("login").of(b"alice"));
        assert!(Salt::from_text("short").is_err());
        assert!(!format!("{salt:?}{:?}", salt.keys_of("x")).contains("characters"));
    }
}
