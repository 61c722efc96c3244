//! The best scalar quantiser for a coordinate of a random unit vector.

/// A Lloyd-Max quantiser: `2^bits` centroids, each the mean of its cell, and cells that end halfway between
/// centroids.
///
/// The coordinate of a random unit vector in `dim` dimensions has the density `(1 - x^2)^((dim - 3) / 2)`, up
/// to a factor, between -1 and 1: a Beta distribution, close to a Gaussian of variance `1 / dim`.
#[derive(Clone, Debug, PartialEq)]
pub struct Codebook {
    centroids: Vec<f64>,
    thresholds: Vec<f64>,
    mse: f64,
}

/// Iterations end when centroids move less than this, which is the resolution of f64 for every use.
const STILL: f64 = 1e-13;

impl Codebook {
    /// The quantiser for coordinates of vectors of `dim` elements.
    ///
    /// # Panics
    /// If `dim < 8` or `bits` is not 1 to 4.
    pub fn new(dim: usize, bits: u32) -> Self {
        assert!(dim >= 8 && (1..=4).contains(&bits), "no codebook for {dim} dimensions and {bits} bits");
        let density = Density::new(dim);
        let half = 1 << (bits - 1);
        // The positive half suffices. The iteration starts from centroids spread over three deviations.
        let spread = (3.0 / (dim as f64).sqrt()).min(1.0);
        let mut centroids: Vec<f64> = (0..half).map(|i| spread * (i as f64 + 0.5) / half as f64).collect();
        loop {
            let edges = edges(&centroids);
            let means = edges
                .windows(2)
                .map(|cell| density.moment(cell[0], cell[1]) / density.mass(cell[0], cell[1]));
            let moved = means.collect::<Vec<_>>();
            let step = moved.iter().zip(&centroids).map(|(new, old)| (new - old).abs()).fold(0.0, f64::max);
            centroids = moved;
            if step < STILL {
                break;
            }
        }
        // E[(x - c)^2] = E[x^2] - E[c^2], because each centroid is the mean of its cell; E[x^2] = 1 / dim.
        let edges = edges(&centroids);
        let kept: f64 =
            edges.windows(2).zip(&centroids).map(|(cell, c)| density.mass(cell[0], cell[1]) * c * c).sum();
        let mse = 1.0 - 2.0 * kept * dim as f64;
        let mirror = |x: &[f64]| x.iter().rev().map(|x| -x).collect::<Vec<_>>();
        let inner = &edges[1..half];
        Self {
            thresholds: [mirror(inner), vec![0.0], inner.to_vec()].concat(),
            centroids: [mirror(&centroids), centroids].concat(),
            mse,
        }
    }

    /// `2^bits` values in ascending order, for unit vectors.
    pub fn centroids(&self) -> &[f64] {
        &self.centroids
    }

    /// The `2^bits - 1` borders between cells, in ascending order.
    pub fn thresholds(&self) -> &[f64] {
        &self.thresholds
    }

    /// Expected squared error of a whole unit vector with an exact scale.
    pub fn mse(&self) -> f64 {
        self.mse
    }

    /// The cell of `x`: the number of thresholds at or below it. NaN gives 0.
    pub fn code(&self, x: f64) -> u8 {
        self.thresholds.iter().filter(|&&threshold| x >= threshold).count() as u8
    }
}

/// Borders of the cells of the positive half, from 0 to 1.
fn edges(centroids: &[f64]) -> Vec<f64> {
    let between = centroids.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    [0.0].into_iter().chain(between).chain([1.0]).collect()
}

/// The density of a coordinate.
struct Density {
    /// `(dim - 3) / 2`.
    power: f64,
    /// Normalises the total mass to 1.
    factor: f64,
}

/// Points and weights of the Gauss-Legendre rule of order 8 on [-1, 1], the positive half.
const GAUSS: [(f64, f64); 4] = [
    (0.183_434_642_495_649_8, 0.362_683_783_378_362),
    (0.525_532_409_916_329, 0.313_706_645_877_887_3),
    (0.796_666_477_413_626_7, 0.222_381_034_453_374_47),
    (0.960_289_856_497_536_2, 0.101_228_536_290_376_26),
];

impl Density {
    fn new(dim: usize) -> Self {
        let mut density = Self { power: (dim as f64 - 3.0) / 2.0, factor: 1.0 };
        density.factor = 0.5 / density.mass(0.0, 1.0);
        density
    }

    /// Probability of `from..to`, by quadrature over panels narrower than a deviation.
    fn mass(&self, from: f64, to: f64) -> f64 {
        let deviation = 1.0 / (2.0 * self.power + 3.0).sqrt();
        let panels = ((to - from) / deviation).ceil().max(1.0);
        let width = (to - from) / panels;
        let at = |x: f64| (1.0 - x * x).max(0.0).powf(self.power);
        let panel = |i: usize| {
            let middle = from + (i as f64 + 0.5) * width;
            GAUSS
                .iter()
                .map(|(x, w)| w * (at(middle - x * width / 2.0) + at(middle + x * width / 2.0)))
                .sum::<f64>()
        };
        self.factor * width / 2.0 * (0..panels as usize).map(panel).sum::<f64>()
    }

    /// Integral of `x` times the density over `from..to`; it has a closed form.
    fn moment(&self, from: f64, to: f64) -> f64 {
        let power = self.power + 1.0;
        let at = |x: f64| (1.0 - x * x).max(0.0).powf(power);
        self.factor * (at(from) - at(to)) / (2.0 * power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed independently of this code: dim 128, the positive half.
    const PINNED: [(u32, &[f64], &[f64], f64); 4] = [
        (1, &[0.0706616], &[], 0.36089),
        (2, &[0.0399916, 0.1330415], &[0.0865166], 0.11600),
        (3, &[0.0216043, 0.0665856, 0.1181398, 0.1883972], &[0.044095, 0.0923627, 0.1532685], 0.03397),
        (
            4,
            &[0.0113025, 0.0341516, 0.0577723, 0.0828285, 0.1102884, 0.1418052, 0.180836, 0.2376638],
            &[0.022727, 0.0459619, 0.0703004, 0.0965584, 0.1260468, 0.1613206, 0.2092499],
            0.009315,
        ),
    ];

    #[test]
    fn the_values_for_128_are_the_published_ones() {
        for (bits, centroids, thresholds, mse) in PINNED {
            let book = Codebook::new(128, bits);
            let half = centroids.len();
            let near = |have: &[f64], want: &[f64]| have.iter().zip(want).all(|(a, b)| (a - b).abs() < 6e-8);
            assert!(near(&book.centroids()[half..], centroids), "{book:?}");
            assert!(near(&book.thresholds()[half..], thresholds), "{book:?}");
            assert!((book.mse() - mse).abs() < 6e-6, "{bits} bits: {}", book.mse());
        }
    }

    #[test]
    fn every_codebook_is_a_fixed_point_and_odd() {
        for dim in [8, 32, 64, 80, 96, 128, 256, 512] {
            for bits in 1..=4 {
                let book = Codebook::new(dim, bits);
                let (c, t) = (book.centroids(), book.thresholds());
                assert_eq!((c.len(), t.len()), (1 << bits, (1 << bits) - 1));
                assert!(c.iter().zip(c.iter().rev()).all(|(a, b)| *a == -b), "{dim} {bits}");
                for (t, c) in t.iter().zip(c.windows(2)) {
                    assert!((t - (c[0] + c[1]) / 2.0).abs() < 1e-12, "{dim} {bits}");
                }
                for (code, c) in c.iter().enumerate() {
                    assert_eq!(usize::from(book.code(*c)), code);
                }
            }
        }
    }

    #[test]
    fn the_error_is_what_a_numerical_integral_says() {
        for bits in 1..=4 {
            let (dim, book) = (64, Codebook::new(64, bits));
            let density = |x: f64| (1.0 - x * x).powf((dim as f64 - 3.0) / 2.0);
            let xs = (-400_000..400_000).map(|i| (f64::from(i) + 0.5) / 400_000.0);
            let (mut mass, mut error) = (0.0, 0.0);
            for x in xs {
                mass += density(x);
                error += density(x) * (x - book.centroids()[usize::from(book.code(x))]).powi(2);
            }
            assert!((error / mass * dim as f64 - book.mse()).abs() < 1e-7);
        }
    }

    /// The first version of this project multiplied by the deviation twice, which shrinks the centroids to
    /// nothing.
    #[test]
    fn the_faulty_update_of_the_seed_is_told_apart() {
        let sigma = 1.0 / 128f64.sqrt();
        let wrong: Vec<f64> = Codebook::new(128, 2).centroids().iter().map(|c| c * sigma).collect();
        let density = Density::new(128);
        let edges = edges(&wrong[2..]);
        let mean = density.moment(edges[0], edges[1]) / density.mass(edges[0], edges[1]);
        assert!((mean - wrong[2]).abs() / wrong[2] > 0.05, "no fixed point: the mean of the cell is {mean}");
    }
}
