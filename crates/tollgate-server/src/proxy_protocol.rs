//! The PROXY protocol, versions 1 and 2: whose connection a load balancer passes on.
//!
//! It is read only where it is configured, only from trusted peers, and never guessed: a connection that does not begin
//! with it is closed.

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest header of version 1, with its line end.
pub const MAX_V1_BYTES: usize = 107;

/// The longest block of addresses and extensions of version 2 that is accepted.
pub const MAX_V2_BYTES: usize = 4_096;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The connection is somebody's.
    Client(SocketAddr),
    /// It is the proxy's own, or of a kind without addresses: the peer is the client.
    Peer,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Reads one header from the beginning of a stream, and not a byte more.
///
/// # Errors
/// [`Malformed`] when the stream ends early or does not begin with a header.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Source, Malformed> {
    let short = |_| Malformed("the connection ended within the header");
    let mut head = [0_u8; 16];
    // No header of version 1 is shorter than the signature of version 2.
    stream.read_exact(&mut head[..12]).await.map_err(short)?;
    if &head[..12] != SIGNATURE {
        let mut line = head[..12].to_vec();
        while !line.ends_with(b"\n") {
            if line.len() >= MAX_V1_BYTES || !line.starts_with(b"PROXY ") {
                return Err(Malformed("not a PROXY header"));
            }
            line.push(stream.read_u8().await.map_err(short)?);
        }
        return parse_v1(&line);
    }
    stream.read_exact(&mut head[12..]).await.map_err(short)?;
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > MAX_V2_BYTES {
        return Err(Malformed("longer than a header may be"));
    }
    let mut block = vec![0; length];
    stream.read_exact(&mut block).await.map_err(short)?;
    parse_v2(head[12], head[13], &block)
}

/// Reads a line of version 1, with its line end.
///
/// # Errors
/// [`Malformed`] for anything else.
pub fn parse_v1(line: &[u8]) -> Result<Source, Malformed> {
    let text = std::str::from_utf8(line).ok().and_then(|text| text.strip_suffix("\r\n"));
    let text = text.filter(|text| text.len() + 2 <= MAX_V1_BYTES).ok_or(Malformed("not a PROXY line"))?;
    let mut words = text.split(' ');
    if words.next() != Some("PROXY") {
        return Err(Malformed("not a PROXY line"));
    }
    let family = words.next();
    if family == Some("UNKNOWN") {
        return Ok(Source::Peer);
    }
    let mut address = || words.next().and_then(|word| word.parse::<IpAddr>().ok());
    let (source, destination) = (address(), address());
    let mut port = || words.next().and_then(|word| word.parse::<u16>().ok());
    let (from, to) = (port(), port());
    let v4 = match family {
        Some("TCP4") => true,
        Some("TCP6") => false,
        _ => return Err(Malformed("neither TCP4, TCP6 nor UNKNOWN")),
    };
    let (Some(source), Some(destination), Some(from), Some(_), None) =
        (source, destination, from, to, words.next())
    else {
        return Err(Malformed("not two addresses and two ports"));
    };
    if source.is_ipv4() != v4 || destination.is_ipv4() != v4 {
        return Err(Malformed("an address of the other family"));
    }
    Ok(Source::Client(SocketAddr::new(source, from)))
}

/// Reads version 2 after its signature: the version and command, the family, and the block.
///
/// # Errors
/// [`Malformed`] for anything else.
pub fn parse_v2(command: u8, family: u8, block: &[u8]) -> Result<Source, Malformed> {
    match command {
        0x20 => return Ok(Source::Peer),
        0x21 => {}
        _ => return Err(Malformed("neither LOCAL nor PROXY of version 2")),
    }
    let short = Malformed("too short for its addresses");
    let port =
        |at: usize| block.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes);
    match family {
        0x11 | 0x12 => {
            let bytes: [u8; 4] = block.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or(short)?;
            let _destination = block.get(4..8).ok_or(short)?;
            port(10).ok_or(short)?;
            Ok(Source::Client(SocketAddr::new(bytes.into(), port(8).ok_or(short)?)))
        }
        0x21 | 0x22 => {
            let bytes: [u8; 16] = block.get(..16).and_then(|bytes| bytes.try_into().ok()).ok_or(short)?;
            port(34).ok_or(short)?;
            Ok(Source::Client(SocketAddr::new(bytes.into(), port(32).ok_or(short)?)))
        }
        0x00 | 0x31 | 0x32 => Ok(Source::Peer),
        _ => Err(Malformed("an unknown family")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parse(bytes: &[u8]) -> Result<(Source, usize), Malformed> {
        let mut rest = bytes;
        let source = read(&mut rest).await?;
        Ok((source, rest.len()))
    }

    fn client(address: &str) -> Source {
        Source::Client(address.parse().unwrap())
    }

    #[tokio::test]
    async fn version_1_is_read_to_its_end_and_no_further() {
        let line = b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\nGET /";
        assert_eq!(parse(line).await, Ok((client("192.0.2.1:4711"), 5)));
        let line = b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 80\r\n";
        assert_eq!(parse(line).await, Ok((client("[2001:db8::1]:4711"), 0)));
        assert_eq!(parse(b"PROXY UNKNOWN\r\nxyz").await, Ok((Source::Peer, 3)));
        assert_eq!(parse(b"PROXY UNKNOWN ffff::1 ::1 1 2\r\n").await, Ok((Source::Peer, 0)));
    }

    #[tokio::test]
    async fn version_2_is_read_with_its_extensions() {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([0x21, 0x11, 0, 15, 192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x67, 0, 80, 9, 9, 9]);
        bytes.extend(b"GET /");
        assert_eq!(parse(&bytes).await, Ok((client("192.0.2.1:4711"), 5)));
        let mut local = SIGNATURE.to_vec();
        local.extend([0x20, 0, 0, 0]);
        assert_eq!(parse(&local).await, Ok((Source::Peer, 0)));
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4711\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80 9\r\n",
            b"PROXY TCP4 2001:db8::1 10.0.0.1 4711 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 99999\r\n",
            b"PROXY UDP4 192.0.2.1 10.0.0.1 4711 80\r\n",
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\n",
            b"PROXY TCP4",
            b"",
        ] {
            assert!(parse(bytes).await.is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        let long = [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200], b"\r\n".to_vec()].concat();
        assert!(parse(&long).await.is_err());
        for tail in [
            &[0x31, 0x11, 0, 0][..],
            &[0x21, 0x11, 0, 4, 1, 2, 3, 4],
            &[0x21, 0x11, 0xFF, 0xFF],
            &[0x21, 0x77, 0, 0],
        ] {
            assert!(parse(&[SIGNATURE.as_slice(), tail].concat()).await.is_err(), "{tail:?}");
        }
    }
}
