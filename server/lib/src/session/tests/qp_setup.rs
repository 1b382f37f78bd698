//! Pending queue pairs, without a device: the jobs of a session wait, and the test reports what
//! became of each queue pair.

use super::*;
use crate::limits::client_limits::ClientLimits;
use crate::rdma::registrations::ConnectedQp;
use crate::session::links::PairEvent;
use tokio::sync::Semaphore;
use verbatim_fabric::verbs::{ADDRESS_BYTES, Address};

/// The offer of a client whose port has this address, fe00::
fn pair_offer() -> LinkOffer {
    let mut address = [0; ADDRESS_BYTES];
    (address[0], address[1], address[2]) = (2, 2, 0xfe);
    assert!(Address::from_bytes(&address).is_ok(), "it is an address");
    LinkOffer::Verbs { address: address.to_vec() }
}

#[tokio::test]
async fn a_failed_link_releases_its_port() {
    let gids = vec!["10.0.0.0/8".parse().expect("a range")];
    let mut scene = Scene::new(|config| config.exports[0].gids = gids);
    let refused = scene.attach(0, 0, pair_offer()).await.expect_err("it is switched off");
    assert!(refused.text.contains("switched off"), "{refused}");
    assert!(scene.session.is_idle() && scene.session.accepts_requests(), "it is over");
    let reach = scene.session.client.reach.clone();
    assert!(reach.resolve_for_data(&path("data/a")).is_ok(), "it may be read over TCP");
}

#[tokio::test]
async fn requests_after_an_attach_wait_for_the_device_to_join() {
    let mut scene = Scene::new(|_| ());
    let (near, far) = tokio::io::duplex(1 << 10);
    let (mut sender, mut receiver) = (Sender::new(near), Receiver::new(far));
    let link = LinkId { index: 0, epoch: 0 };
    for message in [ClientMessage::Attach { link, offer: pair_offer() }, ClientMessage::Bye] {
        sender.send(&message).await.expect("there is room");
    }
    sender.flush().await.expect("there is room");
    let first = receiver.recv().await.expect("readable").expect("it is there");
    assert!(
        scene.session.handle_messages(first, &mut receiver).is_ok(),
        "the goodbye is not heard yet"
    );
    assert!(!scene.session.is_idle() && !scene.session.accepts_requests());
    let answered = |message| match message {
        ServerMessage::Attached { answer, .. } => Some(answer),
        _ => None,
    };
    assert!(scene.hear(answered).await.is_err(), "it is switched off");
    assert!(scene.session.accepts_requests());
    let next = receiver.recv().await.expect("readable").expect("it is there");
    assert!(matches!(scene.session.handle_messages(next, &mut receiver), Err(End::Bye)));
}

/// Links of devices: jobs wait until the test reports their results.
struct Pairs {
    scene: Scene,
    /// With threads, unlike its jobs.
    share: Arc<ClientLimits>,
}

impl Pairs {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut scene = Scene::new(change);
        let share = scene.session.client.share.clone();
        let threads = [Arc::new(Semaphore::new(0)), share.name.threads.clone()];
        let jobs = &mut scene.session.links.setup.jobs;
        *jobs = jobs.within(threads);
        Self { scene, share }
    }

    /// Asks for a link, which is then being connected, or waits for others.
    fn connects(&mut self, index: u16, epoch: u16) -> LinkId {
        let link = LinkId { index, epoch };
        self.scene.say(ClientMessage::Attach { link, offer: pair_offer() }).expect("it may ask");
        self.told(PairEvent::Joined(link, Ok(0)));
        link
    }

    fn told(&mut self, event: PairEvent) {
        assert!(self.scene.session.event(Event::Pair(event)).is_ok(), "it goes on");
    }

    /// The queue pair is made, and used, or destroyed by another job.
    fn made(&mut self, link: LinkId, is_wanted: bool) -> std::sync::Weak<()> {
        let sim = self.scene.session.client.services.sim.clone().expect("it is simulated");
        let (_, end) = sim.listen_end(self.scene.session.client.domain.soft().clone());
        let alive = Arc::new(());
        let watched = Arc::downgrade(&alive);
        let connected =
            ConnectedQp { link: Box::new(QueuePair(end, alive)), address: vec![7], rail: 0 };
        if !is_wanted {
            let ClientLimits { threads, name, .. } = &*self.share;
            let threads = [threads, &name.threads].map(Arc::clone);
            let jobs = &mut self.scene.session.links.setup.jobs;
            *jobs = jobs.within(threads);
        }
        self.told(PairEvent::Made(link, Ok(connected)));
        watched
    }

    async fn answer(&mut self, link: LinkId) -> Result<LinkAnswer, Code> {
        let answered = self.scene.hear(|message| match message {
            ServerMessage::Attached { link: of, answer } if of == link => Some(answer),
            _ => None,
        });
        answered.await.map_err(|fault| fault.code)
    }

    /// Waits until nothing is pending; so many links are up then.
    async fn settle(&mut self, up: usize) {
        while self.scene.session.links.setup.count() > 0 {
            let event = tokio::time::timeout(SOON, self.scene.events.recv()).await.expect("soon");
            assert!(self.scene.session.event(event.expect("a job ends")).is_ok(), "it goes on");
        }
        assert_eq!(self.scene.session.links.count().0, up);
    }
}

#[tokio::test]
async fn queue_pairs_are_connected_one_at_a_time_and_each_is_answered() {
    let mut pairs = Pairs::new(|_| ());
    let links = [0, 1, 2].map(|index| pairs.connects(index, 0));
    // Three that joined, and only one more job.
    assert_eq!(
        (pairs.scene.session.limits.under_way(), pairs.scene.session.links.setup.count()),
        (1, 3)
    );
    let alive = links.map(|link| pairs.made(link, true));
    for link in links {
        let answer = pairs.answer(link).await.expect("it is made");
        assert!(matches!(answer, LinkAnswer::Verbs { address } if address == [7]));
    }
    pairs.settle(3).await;
    assert!(
        alive.iter().all(|link| link.strong_count() == 1)
            && pairs.scene.session.limits.under_way() == 0
    );
}

#[tokio::test]
async fn an_abandoned_queue_pair_is_destroyed_when_it_is_made() {
    let fence = |pairs: &mut Pairs, link| {
        pairs.scene.say(ClientMessage::Fence { link }).expect("it may");
        LinkOffer::Tcp
    };
    let next = |_: &mut Pairs, _| LinkOffer::Tcp;
    let ends: [fn(&mut Pairs, LinkId) -> LinkOffer; 2] = [fence, next];
    for end in ends {
        let mut pairs = Pairs::new(|_| ());
        let (first, waits) = (pairs.connects(0, 0), pairs.connects(1, 0));
        for link in [first, waits] {
            let offer = end(&mut pairs, link);
            pairs.scene.attach(link.index, 1, offer).await.expect("another link");
        }
        assert_eq!(pairs.scene.session.links.setup.count(), 1, "that which a job is at");
        let alive = pairs.made(first, false);
        pairs.settle(0).await;
        assert_eq!(alive.strong_count(), 0, "it is destroyed");
        assert!(
            pairs.scene.session.limits.under_way() == 0
                && pairs.scene.session.links.gids().count() == 0
        );
    }
}

#[tokio::test]
async fn queue_pairs_that_are_being_made_count_as_links() {
    let mut pairs = Pairs::new(|config| config.limits.links_per_session_max = 2);
    for epoch in 0..50 {
        for index in 0..2 {
            let link = LinkId { index, epoch };
            let attach = ClientMessage::Attach { link, offer: pair_offer() };
            pairs.scene.say(attach).expect("it may ask");
            assert!(pairs.scene.session.links.setup.count() <= 4, "{epoch}");
        }
    }
    let answer = pairs.scene.attach(0, 50, LinkOffer::Tcp).await;
    assert_eq!(answer.map_err(|fault| fault.code), Err(Code::Limit));
}

#[tokio::test]
async fn a_file_waits_until_no_queue_pair_to_a_refused_port_is_pending() {
    let gids = || vec!["10.0.0.0/8".parse().expect("a range")];
    let open = || OpenFile { file: FileId(1), path: path("data/a"), have: Vec::new() };
    let mut pairs = Pairs::new(|config| config.exports[0].gids = gids());
    let (connects, waits) = (pairs.connects(0, 0), pairs.connects(1, 0));
    let opens = ClientMessage::Read(ReadRequest::Open { files: vec![open()] });
    assert!(pairs.scene.session.handle_or_hold(opens).is_ok(), "it goes on");
    for link in [connects, waits] {
        assert_eq!(pairs.answer(link).await.err(), Some(Code::Denied));
    }
    assert!(!pairs.scene.session.accepts_requests(), "one is being connected");
    let alive = pairs.made(connects, false);
    pairs.settle(0).await;
    assert!(
        alive.strong_count() == 0 && pairs.scene.session.accepts_requests(),
        "it is opened now"
    );
    assert!(pairs.scene.session.client.reach.resolve_for_data(&path("data/a")).is_ok());
    // A job may hold a reference as well.
    let mut pairs = Pairs::new(|config| config.exports[0].gids = gids());
    let link = pairs.connects(0, 0);
    assert!(pairs.scene.session.client.reach.resolve(&path("data/a")).is_ok(), "a job named it");
    let alive = pairs.made(link, false);
    assert_eq!(pairs.answer(link).await.err(), Some(Code::Denied));
    pairs.settle(0).await;
    assert_eq!(alive.strong_count(), 0);
}
