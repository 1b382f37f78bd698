//! A session that only probes: connects, attaches links, borrows memory of the server, and hands
//! both to `measure`. Transports are tested one after the other, so that none shares a device or a
//! socket.

use crate::SessionOptions;
use crate::probe::measure;
use crate::probe::measure::{Memory, ProbeLink};
use crate::probe::{Measured, ProbeFailure};
use std::time::Duration;
use tokio::time::timeout;
use verbatim_control::{Connection, connect, join_sealed};
use verbatim_engine::connection::transport::{Carrier, Transport, UnprovenLink};
use verbatim_fabric::tcp::{SEALED_MAGIC, TcpLink, join};
use verbatim_fabric::{FabricError, Link, RemoteRange, SoftDomain};
use verbatim_proto::message::{JoinSecret, LinkAnswer, RailAnswer, SealedAnswer, ServerMessage};
use verbatim_proto::probing::{PROBE_BYTES_MAX, ProbeRequest};
use verbatim_proto::{ClientMessage, LinkId, Look, WirePath};

/// The most links tested together.
const LINKS_MAX: u16 = 4;

/// The deadline of one answer of the server.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);

/// The deadline of the goodbye.
const BYE_TIME_MAX: Duration = Duration::from_secs(2);

/// Says goodbye; the server notices the end in any case.
pub async fn say_goodbye(mut connection: Connection) {
    let bye = async {
        let _ = connection.sender.send(&ClientMessage::Bye).await;
        let _ = connection.sender.flush().await;
    };
    let _ = timeout(BYE_TIME_MAX, bye).await;
}

/// Tests a transport with up to four links.
pub async fn try_transport(
    options: &SessionOptions,
    path: &WirePath,
    transport: Transport,
) -> Result<Measured, ProbeFailure> {
    let connection = connect(&options.connect).await.map_err(|error| ProbeFailure {
        step: "door",
        cause: error.to_string(),
        hint: error.hint(),
    })?;
    let bytes = PROBE_BYTES_MAX as usize * usize::from(LINKS_MAX) * measure::DEPTH;
    let carrier = Carrier::choose(&options.carrier, None, connection.peer, (bytes, 1));
    let carrier = match carrier {
        Ok(carrier) => carrier,
        Err(error) => {
            say_goodbye(connection).await;
            return Err(trouble("device", &error));
        }
    };
    let mut wire = Wire { connection, carrier, wait: options.timeout };
    let measured = match wire.name(path).await {
        Ok(()) => wire.measure(transport).await,
        Err(trouble) => Err(trouble),
    };
    say_goodbye(wire.connection).await;
    measured
}

struct Wire {
    connection: Connection,
    carrier: Carrier,
    wait: Duration,
}

impl Wire {
    /// Names an export to the server, because its rules decide which links are permitted.
    async fn name(&mut self, path: &WirePath) -> Result<(), ProbeFailure> {
        if path.is_root() {
            return Ok(());
        }
        let look = Look { follow: true, paths: vec![path.clone()] };
        self.send(ClientMessage::Stat { request: 0, look }).await?;
        let mut answers = self
            .receive(|message| match message {
                ServerMessage::Stated { answers, .. } => Some(answers),
                _ => None,
            })
            .await?;
        match answers.pop() {
            Some(Err(fault)) => {
                let cause = format!("the server: {path}: {}", fault.text);
                Err(ProbeFailure { step: "path", cause, hint: None })
            }
            _ => Ok(()),
        }
    }

    async fn measure(&mut self, transport: Transport) -> Result<Measured, ProbeFailure> {
        let first = match self.attach(0).await? {
            Made::Link(link) => link,
            Made::Unproven(unproven) => match prove(unproven).await {
                Ok(link) => link,
                Err(error) => return Err(self.diagnose_unproven(error).await),
            },
        };
        let memory = self.lend(0).await?;
        let mut links = vec![first];
        let links_max = LINKS_MAX.min(self.connection.welcome.links_max);
        for index in 1..links_max {
            // Fewer links suffice: a server may limit the queue pairs of one client.
            let Ok(made) = self.attach(index).await else { break };
            match made {
                Made::Link(link) => links.push(link),
                Made::Unproven(unproven) => {
                    let Ok(link) = prove(unproven).await else { break };
                    links.push(link);
                }
            }
        }
        let measured = tokio::task::spawn_blocking(move || {
            let probe_links = links.into_iter().map(ProbeLink::new).collect();
            measure::links(probe_links, &memory)
        });
        let measured = measured.await.map_err(|error| ProbeFailure {
            step: "measure",
            cause: error.to_string(),
            hint: None,
        })?;
        measured.map_err(|error| trouble(step_of(transport), &error))
    }

    /// Diagnoses a new link over which a page did not arrive. If a few bytes do, the path drops
    /// large packets.
    async fn diagnose_unproven(&mut self, error: FabricError) -> ProbeFailure {
        let dead = trouble("verbs", &error);
        let Ok(Made::Unproven(second)) = self.attach(1).await else { return dead };
        let Ok(memory) = self.lend(1).await else { return dead };
        let link = second.into_link();
        let small = tokio::task::spawn_blocking(move || {
            measure::reads_small(ProbeLink::new(link), &memory)
        });
        match small.await {
            Ok(Ok(())) => ProbeFailure {
                step: "mtu",
                cause: "a few bytes arrive, a page does not: packets of the port's MTU are dropped \
                        on the way"
                    .into(),
                hint: Some(
                    "give both ends and every switch between the same MTU: ip link set DEV mtu 9000"
                        .into(),
                ),
            },
            _ => dead,
        }
    }

    async fn attach(&mut self, index: u16) -> Result<Made, ProbeFailure> {
        let link = LinkId { index, epoch: 0 };
        let offer = self.carrier.offer(link, Duration::ZERO);
        let offer = offer.map_err(|error| trouble("device", &error))?;
        self.send(ClientMessage::Attach { link, offer }).await?;
        let answer = self
            .receive(|message| match message {
                ServerMessage::Attached { link: of, answer } if of == link => Some(answer),
                _ => None,
            })
            .await?;
        let refused = |cause: String| ProbeFailure { step: "attach", cause, hint: None };
        match answer.map_err(|fault| refused(format!("the server: {}", fault.text)))? {
            LinkAnswer::Tcp { secret: JoinSecret(secret) } => {
                let (peer, wait) = (self.connection.peer, self.wait);
                let made = tokio::task::spawn_blocking(move || {
                    let stream = join(peer, &secret, wait)?;
                    Ok(Box::new(TcpLink::new(stream, SoftDomain::new())?) as Box<dyn Link>)
                });
                let made = made.await.map_err(|error| refused(error.to_string()))?;
                made.map(Made::Link).map_err(|error: FabricError| trouble("tcp", &error))
            }
            LinkAnswer::Verbs { address } | LinkAnswer::Rail(RailAnswer { address, .. }) => {
                let made = self.carrier.connect(link, &address);
                made.map(|it| Made::Unproven(Box::new(it)))
                    .map_err(|error| trouble("verbs", &error))
            }
            // An export of this client requires encryption: TLS excludes RDMA.
            LinkAnswer::Sealed(SealedAnswer { reason, .. }) if self.carrier.is_verbs() => {
                let hint = "nothing to mend where that is meant to be; of an export that need not \
                            be encrypted: rdma-doctor HOST:/EXPORT";
                let cause = format!("the server: {reason}");
                Err(ProbeFailure { step: "sealed", cause, hint: Some(hint.into()) })
            }
            LinkAnswer::Sealed(SealedAnswer { secret, .. }) => {
                let Connection { peer, server, .. } = self.connection;
                let joined = join_sealed(peer, server, (&SEALED_MAGIC, &secret.0), self.wait).await;
                let made = joined
                    .map_err(|error| FabricError::system("cannot join the session", error))
                    .and_then(|(stream, tls)| TcpLink::sealed(stream, tls, SoftDomain::new()));
                made.map(|link| Made::Link(Box::new(link))).map_err(|error| trouble("tcp", &error))
            }
            LinkAnswer::Sim { .. } => Err(refused("the server offers another kind of link".into())),
        }
    }

    /// Borrows memory of the server to read and write.
    async fn lend(&mut self, index: u16) -> Result<Memory, ProbeFailure> {
        let request = ProbeRequest { link: LinkId { index, epoch: 0 }, bytes: PROBE_BYTES_MAX };
        self.send(ClientMessage::Probe(request)).await?;
        let answer = self
            .receive(|message| match message {
                ServerMessage::Probed(answer) => Some(answer),
                _ => None,
            })
            .await?;
        let range =
            |region: verbatim_proto::Region| RemoteRange { key: region.key, address: region.base };
        let lent = answer.map_err(|fault| ProbeFailure {
            step: "probe",
            cause: format!("the server lends no memory: {}", fault.text),
            hint: Some("look again when fewer clients are connected".into()),
        })?;
        let bytes = (lent.bytes as usize).min(PROBE_BYTES_MAX as usize);
        if bytes < measure::SMALL_BYTES {
            return Err(ProbeFailure {
                step: "probe",
                cause: format!("the server lends {bytes} bytes, which is too little to measure"),
                hint: Some("use a server of the same release".into()),
            });
        }
        Ok(Memory { read: range(lent.read), write: range(lent.write), bytes })
    }

    async fn send(&mut self, message: ClientMessage) -> Result<(), ProbeFailure> {
        let sender = &mut self.connection.sender;
        let sent = async {
            sender.send(&message).await?;
            sender.flush().await
        };
        match timeout(ANSWER_TIME_MAX, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(error.to_string())),
            Err(_) => Err(lost("the server takes no message".into())),
        }
    }

    /// Waits for one kind of answer and ignores others.
    async fn receive<T>(
        &mut self,
        mut wanted: impl FnMut(ServerMessage) -> Option<T>,
    ) -> Result<T, ProbeFailure> {
        let receiver = &mut self.connection.receiver;
        let heard = async {
            loop {
                match receiver.recv().await.map_err(|error| lost(error.to_string()))? {
                    Some(ServerMessage::Refused(fault)) => return Err(lost(fault.text)),
                    Some(message) => {
                        if let Some(answer) = wanted(message) {
                            return Ok(answer);
                        }
                    }
                    None => return Err(lost("the server hung up; is it older than 0.1?".into())),
                }
            }
        };
        let silent = || lost(format!("no answer in {} s", ANSWER_TIME_MAX.as_secs()));
        timeout(ANSWER_TIME_MAX, heard).await.unwrap_or_else(|_| Err(silent()))
    }
}

/// A link that the server has attached.
enum Made {
    Link(Box<dyn Link>),
    Unproven(Box<UnprovenLink>),
}

async fn prove(unproven: Box<UnprovenLink>) -> Result<Box<dyn Link>, FabricError> {
    let proven = tokio::task::spawn_blocking(move || unproven.prove()).await;
    proven.unwrap_or(Err(FabricError::Closed))
}

fn step_of(transport: Transport) -> &'static str {
    if transport == Transport::Verbs { "verbs" } else { "tcp" }
}

fn trouble(step: &'static str, error: &FabricError) -> ProbeFailure {
    ProbeFailure { step, cause: error.to_string(), hint: error.hint().map(str::to_owned) }
}

fn lost(cause: String) -> ProbeFailure {
    ProbeFailure { step: "session", cause, hint: Some("see the server's log".into()) }
}
