//! RESP: the door for whoever has a Redis client. `CL.THROTTLE` as redis-cell has it, and `TOLLGATE` over the policies.

mod command;
mod reply;
pub mod wire;

use std::io;

use bytes::BytesMut;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate::Ruling;

use crate::app::{App, Door};
use crate::listen::{Peer, Protocol, Stop};
use crate::resp::command::{Command, Question, Session};
use crate::resp::wire::{Malformed, Replies};

/// The most commands that are decided together; more that have come wait for their turn.
const MAX_BATCH: usize = 128;

/// What is read at once at first.
const FIRST_BYTES: usize = 4 << 10;

/// What is read at once at most.
const READ_BYTES: usize = 16 << 10;

/// The door for Redis clients.
#[derive(Debug)]
pub struct Resp;

impl Protocol for Resp {
    async fn serve(&self, mut stream: TcpStream, _peer: Peer, app: &App, mut stop: Stop) -> io::Result<()> {
        let (mut buffer, mut session) = (BytesMut::new(), Session::new(app));
        let mut replies = Replies { out: Vec::new(), three: false };
        loop {
            let ended = answer(app, &mut buffer, &mut session, &mut replies).await;
            if !replies.out.is_empty() {
                // Whoever does not read what was asked for is not waited for.
                timeout(app.settings.limits.body_timeout, stream.write_all(&replies.out)).await??;
                replies.out.clear();
                if ended.is_some() {
                    return Ok(());
                }
                // There may be more that has come already.
                continue;
            }
            if ended.is_some() {
                return Ok(());
            }
            if buffer.is_empty() {
                // An idle client keeps nothing here, and may take its time.
                (buffer, replies.out) = (BytesMut::new(), Vec::new());
                tokio::select! {
                    begun = begin(&mut stream, &mut buffer) => if !begun? { return Ok(()) },
                    () = stop.told() => return Ok(()),
                }
                if wire::is_decided(&buffer) {
                    continue;
                }
            }
            if !timeout(app.settings.limits.head_timeout, command(&mut stream, &mut buffer)).await?? {
                return Ok(());
            }
        }
    }
}

/// Answers what a client has sent, as far as it is whole commands, in the way that its connection would.
pub async fn converse(app: &App, sent: &[u8]) -> Vec<u8> {
    let (mut buffer, mut session) = (BytesMut::from(sent), Session::new(app));
    let (mut said, mut replies) = (Vec::new(), Replies { out: Vec::new(), three: false });
    loop {
        let ended = answer(app, &mut buffer, &mut session, &mut replies).await;
        let more = !replies.out.is_empty() && ended.is_none();
        said.append(&mut replies.out);
        if !more {
            return said;
        }
    }
}

/// Waits for the first bytes of a command, with no room held for them. `false` when the client has ended.
async fn begin(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<bool> {
    loop {
        stream.readable().await?;
        buffer.reserve(FIRST_BYTES);
        match stream.try_read_buf(buffer) {
            Ok(read) => return Ok(read > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => *buffer = BytesMut::new(),
            Err(error) => return Err(error),
        }
    }
}

/// Reads until there is a command, or what will never be one. `false` when the client has ended first.
async fn command(stream: &mut TcpStream, buffer: &mut BytesMut) -> io::Result<bool> {
    loop {
        // A connection has room for what it has shown that it sends.
        buffer.reserve(buffer.len().clamp(FIRST_BYTES, READ_BYTES));
        if stream.read_buf(buffer).await? == 0 {
            return Ok(false);
        }
        if wire::is_decided(buffer) {
            return Ok(true);
        }
    }
}

/// The connection is to end.
struct Ended;

/// Answers whole commands that have come, as many as are decided together.
async fn answer(
    app: &App,
    buffer: &mut BytesMut,
    session: &mut Session,
    replies: &mut Replies,
) -> Option<Ended> {
    let mut batch = Vec::new();
    let mut malformed = None;
    while batch.len() < MAX_BATCH {
        match wire::take(buffer) {
            Ok(Some(words)) => batch.push(words),
            Ok(None) => break,
            Err(error) => {
                malformed = Some(error);
                break;
            }
        }
    }
    let mut waiting: Vec<Question<'_>> = Vec::new();
    for words in &batch {
        match session.read(app, words) {
            Command::Ask(question) => {
                if !waiting.iter().all(|earlier| earlier.may_go_with(&question)) {
                    decide(app, &mut waiting, replies).await;
                }
                waiting.push(question);
                continue;
            }
            Command::Here(reply) => {
                decide(app, &mut waiting, replies).await;
                replies.three = session.three;
                reply.write(replies);
            }
            Command::Settle(token, used) => {
                decide(app, &mut waiting, replies).await;
                reply::settled(app.settle(token.to_owned(), used).await, replies);
            }
            Command::Quit => {
                decide(app, &mut waiting, replies).await;
                replies.simple("OK");
                return Some(Ended);
            }
            Command::CutOff => {
                decide(app, &mut waiting, replies).await;
                return Some(Ended);
            }
        }
    }
    decide(app, &mut waiting, replies).await;
    malformed.map(|Malformed(what)| {
        replies.error("ERR", &format!("Protocol error: {what}"));
        Ended
    })
}

/// Decides what is waiting, all at once, and answers it in order.
async fn decide(app: &App, waiting: &mut Vec<Question<'_>>, replies: &mut Replies) {
    let rulings: Vec<Ruling> = match waiting.as_slice() {
        [] => return,
        [question] => vec![question.ask(app).await],
        several => join_all(several.iter().map(|question| question.ask(app))).await,
    };
    for (question, ruling) in waiting.drain(..).zip(&rulings) {
        question.answer(ruling, replies);
    }
}

/// What a decision by this door is recorded as.
const DOOR: Door = Door::Resp;
